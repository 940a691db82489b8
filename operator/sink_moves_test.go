package operator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// events stores so many, each in a transaction of its own, of two tenants and with and without a key.
func events(t *testing.T, db outbox.DB, n int) (ids []outbox.ID) {
	t.Helper()
	for i := range n {
		opts := outbox.EventOptions{Tenant: []outbox.ID{{}, {0: 7}}[i%2], Key: []string{"", "k"}[i/2%2]}
		id, err := outbox.Publish(t.Context(), db, outbox.Raw{KindName: "order.paid", Payload: []byte(`{}`)}, opts)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

func cursorText(t *testing.T, db *pgxpool.Pool) (text string) {
	t.Helper()
	if err := db.QueryRow(t.Context(), `SELECT format('%s %s owner %s epoch %s', top, holes, coalesce(owner, 'none'), epoch) FROM outbox.sinks`).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func TestASinkIsMoved(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	open, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = open.Rollback(t.Context()) }()
	events(t, db, 2)   // 1 and 2
	events(t, open, 1) // 3
	events(t, db, 2)   // 4 and 5
	exec(t, db, `UPDATE outbox.events SET at = at - interval '1 hour' WHERE position < 4`)
	for _, tt := range []struct {
		from, holes string
		to          operator.SinkTarget
		move        operator.SinkMove
		want        string
	}{
		{"0", "{}", operator.SinkTarget{End: true}, operator.SinkMove{From: 0, To: 5, Events: 4}, "5 {[3,4)} owner none epoch 8"},
		{"4", "{[2,4)}", operator.SinkTarget{End: true}, operator.SinkMove{From: 4, To: 5, Events: 2}, "5 {[3,4)} owner none epoch 8"},
		{"0", "{}", operator.SinkTarget{Position: new(int64(2))}, operator.SinkMove{From: 0, To: 2, Events: 2}, "2 {} owner none epoch 8"},
		{"0", "{}", operator.SinkTarget{Since: time.Now().Add(-time.Minute)}, operator.SinkMove{From: 0, To: 3, Events: 2}, "3 {[3,4)} owner none epoch 8"},
		{"5", "{[3,4)}", operator.SinkTarget{Position: new(int64(0))}, operator.SinkMove{From: 5, To: 0, Events: 4}, "0 {} owner none epoch 8"},
		// What waits at a hole that stays passed by is still published.
		{"5", "{[2,4)}", operator.SinkTarget{Position: new(int64(4))}, operator.SinkMove{From: 5, To: 4, Events: 1}, "4 {[2,4)} owner none epoch 8"},
		{"5", "{}", operator.SinkTarget{Since: time.Now().Add(time.Minute)}, operator.SinkMove{From: 5, To: 5, Events: 0}, "5 {} owner none epoch 8"},
	} {
		t.Run(fmt.Sprintf("%s %s to %+v", tt.from, tt.holes, tt.to), func(t *testing.T) {
			exec(t, db, `INSERT INTO outbox.sinks (sink, top, holes, owner, epoch, lease_expires_at) VALUES ('orders', $1::text::bigint, $2::text::int8multirange, 'host-1', 7, now() + interval '5 minutes')
				ON CONFLICT (sink) DO UPDATE SET top = excluded.top, holes = excluded.holes, owner = excluded.owner, epoch = 7, lease_expires_at = excluded.lease_expires_at`, tt.from, tt.holes)
			before := cursorText(t, db)
			move, err := o.WouldSeekSink(t.Context(), "orders", tt.to)
			if err != nil || move != tt.move || cursorText(t, db) != before {
				t.Errorf("it would be %+v, %v, and the sink is at %s, want %+v, and at %s", move, err, cursorText(t, db), tt.move, before)
			}
			if move, err = o.Because("a test").SeekSink(t.Context(), "orders", tt.to); err != nil || move != tt.move {
				t.Errorf("it is %+v, %v, want %+v", move, err, tt.move)
			}
			if got := cursorText(t, db); got != tt.want {
				t.Errorf("the sink is at %s, want %s", got, tt.want)
			}
		})
	}
	var invalid *outbox.InvalidError
	for _, position := range []int64{-1, 6} {
		if _, err := o.SeekSink(t.Context(), "orders", operator.SinkTarget{Position: &position}); !errors.As(err, &invalid) {
			t.Errorf("to %d: %v, want it refused", position, err)
		}
	}
	if _, err := o.SeekSink(t.Context(), "none", operator.SinkTarget{End: true}); !errors.Is(err, operator.ErrSinkNotFound) {
		t.Errorf("of no sink: %v", err)
	}
	audit, err := o.Audit(t.Context(), operator.AuditFilter{Act: "sink.seek"})
	if err != nil || len(audit) != 7 || audit[6].Target != "orders" || audit[6].Reason != "a test" || string(audit[6].Before) != `{"position": 0}` || string(audit[6].After) != `{"position": 5}` {
		t.Errorf("the audit has %+v, %v", audit, err)
	}
}

// A move that was looked at is not made the other way because the sink has moved meanwhile.
func TestAMoveKeepsItsDirection(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	events(t, db, 6)
	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('orders', 0)`)
	for _, tt := range []struct {
		from, to, now int64
		events        int64 // -1 if it is refused
	}{
		{0, 4, 0, 4},
		{0, 4, 3, 1},
		{0, 4, 4, -1},
		{0, 4, 5, -1},
		{5, 2, 5, 3},
		{5, 2, 6, 4},
		{5, 2, 2, -1},
		{5, 2, 1, -1},
		{3, 3, 3, 0},
		{3, 3, 4, -1},
		{3, 3, 2, -1},
	} {
		exec(t, db, `UPDATE outbox.sinks SET top = $1, holes = '{}', epoch = 7`, tt.from)
		seen, err := o.WouldSeekSink(t.Context(), "orders", operator.SinkTarget{Position: &tt.to})
		if err != nil || seen.From != tt.from || seen.To != tt.to {
			t.Fatalf("it would be %+v, %v", seen, err)
		}
		exec(t, db, `UPDATE outbox.sinks SET top = $1`, tt.now)
		move, err := o.MoveSink(t.Context(), "orders", seen)
		cursor := fmt.Sprintf("%d {} owner none epoch 8", tt.to)
		if tt.events < 0 {
			if cursor = fmt.Sprintf("%d {} owner none epoch 7", tt.now); !errors.Is(err, operator.ErrSinkMoved) {
				t.Errorf("%+v: moved %+v, %v, want %v", tt, move, err, operator.ErrSinkMoved)
			}
		} else if want := (operator.SinkMove{From: tt.now, To: tt.to, Events: tt.events}); err != nil || move != want {
			t.Errorf("%+v: moved %+v, %v, want %+v", tt, move, err, want)
		}
		if got := cursorText(t, db); got != cursor {
			t.Errorf("%+v: the sink is at %s, want %s", tt, got, cursor)
		}
	}
	var invalid *outbox.InvalidError
	for _, position := range []int64{-1, 7} {
		if _, err := o.MoveSink(t.Context(), "orders", operator.SinkMove{From: 3, To: position}); !errors.As(err, &invalid) {
			t.Errorf("to %d: %v, want it refused", position, err)
		}
	}
	if _, err := o.MoveSink(t.Context(), "none", operator.SinkMove{}); !errors.Is(err, operator.ErrSinkNotFound) {
		t.Errorf("of no sink: %v", err)
	}
	if audit, err := o.Audit(t.Context(), operator.AuditFilter{Act: "sink.seek"}); err != nil || len(audit) != 5 {
		t.Errorf("the audit has %d moves, %v, want 5", len(audit), err)
	}
}

func TestASinkIsRemoved(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	exec(t, db, `INSERT INTO outbox.sinks (sink, top, published, owner, lease_expires_at) VALUES
		('owned', 1, 1, 'host-1', now() + interval '5 minutes'), ('killed', 1, 1, 'host-1', now() - interval '10 seconds'), ('left', 7, 3, NULL, NULL), ('dead', 1, 1, 'host-1', now() - interval '2 minutes')`)
	for sink, want := range map[string]error{"owned": operator.ErrSinkInUse, "killed": operator.ErrSinkInUse, "left": nil, "dead": nil, "none": operator.ErrSinkNotFound} {
		if err := o.Because("moved").RemoveSink(t.Context(), sink, false); !errors.Is(err, want) {
			t.Errorf("of the sink %s: %v, want %v", sink, err, want)
		}
	}
	sinks, err := o.Sinks(t.Context())
	if err != nil || len(sinks) != 2 {
		t.Errorf("there are %+v, %v, want those in use", sinks, err)
	}
	audit, err := o.Audit(t.Context(), operator.AuditFilter{Act: "sink.remove", Target: "left"})
	if err != nil || len(audit) != 1 || string(audit[0].Before) != `{"position": 7, "published": 3}` || audit[0].Reason != "moved" {
		t.Errorf("the audit has %+v, %v", audit, err)
	}
}

// The zero target would publish the whole log again, and of two that are set one would win.
func TestATargetOfASinkIsExactlyOne(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	events(t, db, 3)
	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('orders', 3)`)
	for _, to := range []operator.SinkTarget{
		{},
		{Position: new(int64(0)), End: true},
		{Since: time.Now(), End: true},
		{Position: new(int64(1)), Since: time.Now(), End: true},
	} {
		_, err := o.SeekSink(t.Context(), "orders", to)
		if refused, ok := errors.AsType[*outbox.InvalidError](err); !ok || refused.Field != "SinkTarget" {
			t.Errorf("to %+v: %v, want the target refused", to, err)
		}
	}
	if got := cursorText(t, db); got != "3 {} owner none epoch 0" {
		t.Errorf("the sink is at %s, want it where it was", got)
	}
}

// A name that no sink can have gets no error of the server.
func TestNamesThatNoSinkHasAreRefused(t *testing.T) {
	t.Parallel()
	o, _ := newRig(t)
	ctx := t.Context()
	since := operator.EventReplay{EventFilter: operator.EventFilter{Since: time.Now().Add(-time.Hour)}}
	for _, name := range []string{"a\x00", "a\xff"} {
		_, seek := o.SeekSink(ctx, name, operator.SinkTarget{End: true})
		_, move := o.MoveSink(ctx, name, operator.SinkMove{})
		_, held := o.Held(ctx, name, operator.HeldPlace{}, 0)
		_, replay := o.ReplayEvents(operator.WithTenant(ctx, outbox.RootTenant), name, since)
		_, replays := o.Replays(ctx, name, outbox.ID{})
		_, one := o.Replay(ctx, name, outbox.ID{}, outbox.NewID())
		for act, err := range map[string]error{
			"seek": seek, "move": move, "held": held, "replay": replay, "replays": replays, "one replay": one,
			"stop": o.StopReplay(ctx, name, outbox.ID{}, outbox.NewID()), "pause": o.PauseSink(ctx, name),
			"resume": o.ResumeSink(ctx, name), "skip": o.SkipEvent(ctx, name, outbox.NewID()),
			"remove": o.RemoveSink(ctx, name, false),
		} {
			if refused, ok := errors.AsType[*outbox.InvalidError](err); !ok || refused.Field != "sink" {
				t.Errorf("%s of %q: %v, want the name refused", act, name, err)
			}
		}
	}
}

// planSpy keeps the server's plan of what it sends on.
type planSpy struct {
	*pgxpool.Pool
	plan string
}

func (s *planSpy) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows, _ := s.Pool.Query(ctx, "EXPLAIN "+sql, args...) // its error is the next one's
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	s.plan = strings.Join(lines, "\n")
	return s.Pool.Query(ctx, sql, args...)
}

// A sink's keys are looked up, tenant by tenant: the sink's row is locked meanwhile, and other kinds may have millions.
func TestASinksKeysAreLookedUp(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	exec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('s', 7), ('other', 7)`)
	exec(t, db, `INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id)
		SELECT CASE WHEN i % 20 = 0 THEN $1::uuid ELSE ('00000000-0000-0000-0000-' || lpad((i % 20)::text, 12, '0'))::uuid END,
			CASE WHEN i <= 60 THEN 'relay:s' WHEN i <= 80 THEN 'relay:other' ELSE 'mail' END, i::text, gen_random_uuid()
		FROM generate_series(1, 5000) i`, outbox.RootTenant.String())
	exec(t, db, `ANALYZE outbox.idempotency_keys`)
	left := func() (text string) {
		t.Helper()
		if err := db.QueryRow(t.Context(), `SELECT string_agg(format('%s of %s', n, kind), ', ' ORDER BY kind)
			FROM (SELECT kind, count(*) AS n FROM outbox.idempotency_keys GROUP BY kind) AS kinds`).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	spy := &planSpy{Pool: db}
	q := sqlgen.New(spy)
	exec(t, db, `SELECT setval('outbox.events_position_seq', 9)`)
	seek := func(position, from int64) error {
		moved, err := q.SeekSink(t.Context(), sqlgen.SeekSinkParams{Sink: "s", Position: position, SeenAt: from, Actor: "ada"})
		if err == nil && !moved[0].Moved {
			t.Error("the sink has not moved")
		}
		return err
	}
	for _, step := range []struct {
		name string
		act  func() error
		left string
	}{
		{"forward", func() error { return seek(8, 7) }, "4920 of mail, 20 of relay:other, 60 of relay:s"},
		{"back", func() error { return seek(3, 8) }, "4920 of mail, 20 of relay:other"},
		{"remove", func() error {
			_, err := q.RemoveSink(t.Context(), sqlgen.RemoveSinkParams{Sink: "other", Actor: "ada"})
			return err
		}, "4920 of mail"},
	} {
		if err := step.act(); err != nil {
			t.Fatal(err)
		}
		if got := left(); got != step.left {
			t.Errorf("after %s there are %s, want %s", step.name, got, step.left)
		}
		if strings.Contains(spy.plan, "Seq Scan on idempotency_keys") || !strings.Contains(spy.plan, ".tenant_id) AND (kind = 'relay:") {
			t.Errorf("the plan of %s is\n%s", step.name, spy.plan)
		}
	}
}
