package schedule

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// full returns an edit that names everything.
func full() Edit {
	return Edit{
		Cron: new("0 7 * * 1-5"), Zone: new("Europe/Berlin"), Kind: new("report"), Payload: []byte(`{"of":"a"}`), ContentType: new("application/json"),
		Queue: new("q"), Priority: new(3), MaxAttempts: new(7), Timeout: new(time.Minute), Backoff: outbox.Backoff{time.Second, time.Hour},
		Headers: map[string]string{"a": "b"}, Hold: new(true), Streamed: new(true), Deadline: new(time.Hour), Key: new("k"), Ordered: new(true),
		OnDeath: new(outbox.ParkKey), ParkAfter: new(time.Minute), OnLapse: new(outbox.BlockLapsed), Missed: new(All), MissedLimit: new(5),
	}
}

func create(t testing.TB, db *pgxpool.Pool, name string, e Edit) {
	t.Helper()
	err := inTx(t, db, func(tx pgx.Tx) error {
		_, err := e.New(outbox.ID{}, name).CreateIn(t.Context(), tx, "ada")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func edit(t testing.TB, db *pgxpool.Pool, name string, e Edit) error {
	t.Helper()
	return inTx(t, db, func(tx pgx.Tx) error {
		_, found, err := e.ChangeIn(t.Context(), tx, outbox.RootTenant, name, "ada")
		if err == nil && !found {
			t.Errorf("no schedule %s", name)
		}
		return err
	})
}

func inTx(t testing.TB, db *pgxpool.Pool, do func(pgx.Tx) error) error {
	t.Helper()
	return pgx.BeginFunc(t.Context(), db, do)
}

func TestWhatIsMadeIsWhatCodeDeclares(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	create(t, db, "s", full())
	declared := Cron("s", "0 7 * * 1-5", "Europe/Berlin", reportArgs{Of: "a"}, Options{
		Queue: "q", Priority: 3, MaxAttempts: 7, Timeout: time.Minute, Backoff: outbox.Backoff{time.Second, time.Hour}, Headers: map[string]string{"a": "b"},
		Hold: true, Streamed: true, Deadline: time.Hour, Missed: All, MissedLimit: 5,
		Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: time.Minute, OnLapse: outbox.BlockLapsed},
	})
	const everything = `SELECT (to_jsonb(schedules) - '{set_by,generation,since,updated_at,created_at}'::text[])::text FROM outbox.schedules`
	made := ask[string](t, db, everything)
	declare(t, newScheduler(t, db, declared))
	if diff := cmp.Diff(ask[string](t, db, everything), made); diff != "" {
		t.Errorf("what an edit makes (-declared +made):\n%s", diff)
	}
}

// A change keeps what it does not name, whatever that is, and the zero value is the default again.
func TestAChangeKeepsWhatItDoesNotName(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	create(t, db, "s", full())
	before := stored(t, db)
	if err := edit(t, db, "s", Edit{}); err != nil || !cmp.Equal(before, stored(t, db)) {
		t.Errorf("a change of nothing (%v):\n%s", err, cmp.Diff(before, stored(t, db)))
	}
	if err := edit(t, db, "s", Edit{Queue: new(""), Timeout: new(time.Duration(0)), Backoff: outbox.Backoff{}, Headers: map[string]string{}, OnDeath: new(outbox.DeathPolicy("")), ParkAfter: new(time.Duration(0)), Payload: []byte{}}); err != nil {
		t.Fatal(err)
	}
	if got := ask[string](t, db, `SELECT concat_ws(' ', queue, num_nonnulls(timeout, backoff, headers, on_death, park_after), convert_from(payload, 'UTF8'), priority, key) FROM outbox.schedules`); got != "default 0 {} 3 k" {
		t.Errorf("after a change to the defaults it is %s", got)
	}
	if err := edit(t, db, "s", Edit{Every: new(time.Hour)}); err != nil || ask[bool](t, db, `SELECT num_nonnulls(expression, time_zone) = 0 AND every = '1 hour' FROM outbox.schedules`) == false {
		t.Errorf("an interval in place of an expression: %v, %v", err, stored(t, db))
	}
	if err := edit(t, db, "s", Edit{Cron: new("@daily")}); err != nil || ask[string](t, db, `SELECT expression || ' ' || time_zone FROM outbox.schedules WHERE every IS NULL`) != "@daily UTC" {
		t.Errorf("an expression in place of an interval: %v, %v", err, stored(t, db))
	}
}

// The mistakes are those of Cron and Every, and nothing of a bad edit is stored.
func TestMistakesInAnEditAreNamed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	create(t, db, "s", Edit{Every: new(time.Hour), Kind: new("report")})
	before := stored(t, db)
	for name, tt := range map[string]struct {
		edit Edit
		want []string
	}{
		"both timings":      {Edit{Cron: new("@daily"), Every: new(time.Hour)}, []string{"interval"}},
		"a zone of none":    {Edit{Zone: new("UTC")}, []string{"zone"}},
		"no interval":       {Edit{Every: new(time.Duration(0))}, []string{"interval"}},
		"no expression":     {Edit{Cron: new("")}, []string{"expression"}},
		"30 February":       {Edit{Cron: new("0 0 30 2 *")}, []string{"expression"}},
		"an unknown zone":   {Edit{Cron: new("@daily"), Zone: new("Mars")}, []string{"zone"}},
		"a kind":            {Edit{Kind: new("")}, []string{"Args.Kind()"}},
		"no JSON":           {Edit{Payload: []byte("{")}, []string{"Raw.Payload"}},
		"several":           {Edit{Cron: new("61 0 * * *"), Queue: new("a b"), Missed: new(Missed("x"))}, []string{"expression.minute", "Options.Missed", "Options.Queue"}},
		"a header of ours":  {Edit{Headers: map[string]string{"schedule": "x"}}, []string{"Options.Headers"}},
		"not of its schema": {Edit{Check: refusing{}}, []string{"Args/x"}},
	} {
		if err := edit(t, db, "s", tt.edit); !cmp.Equal(invalidFields(err), tt.want) {
			t.Errorf("%s: got %v, want %v", name, err, tt.want)
		}
	}
	if diff := cmp.Diff(before, stored(t, db)); diff != "" {
		t.Errorf("stored (-before +after):\n%s", diff)
	}
	if err := (Edit{Kind: new("report")}).New(outbox.ID{}, "t").Validate(); !cmp.Equal(invalidFields(err), []string{"expression"}) {
		t.Errorf("a new schedule without a timing: %v", err)
	}
	inCode, made := Cron("t", "0 25 * * MOON", "Mars", reportArgs{}, Options{}), Edit{Cron: new("0 25 * * MOON"), Zone: new("Mars"), Kind: new("report")}.New(outbox.ID{}, "t")
	if diff := cmp.Diff(inCode.Validate().Error(), made.Validate().Error()); diff != "" {
		t.Errorf("the words of a mistake (-in code +made):\n%s", diff)
	}
}

type refusing struct{}

func (refusing) Check(string, outbox.Content) error {
	return &outbox.InvalidError{Field: "Args/x", Reason: "is refused"}
}

// Whose a schedule is: a program's is changed by programs alone, and what a program declares becomes the program's.
func TestWhoseAScheduleIs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	create(t, db, "made", Edit{Every: new(time.Hour), Kind: new("made")})
	var log bytes.Buffer
	s := newScheduler(t, db, Every("declared", time.Hour, reportArgs{}, Options{}))
	s.declarer.log = slog.New(slog.NewTextHandler(&log, nil))
	declare(t, s)
	if got := ask[string](t, db, `SELECT string_agg(concat(name, ' ', kind, ' ', set_by), ', ' ORDER BY name) FROM outbox.schedules`); got != "declared report , made made ada" {
		t.Errorf("after a start there are %s; want the one that was made left alone", got)
	}
	before := stored(t, db)
	if err := edit(t, db, "declared", Edit{Every: new(time.Minute)}); !errors.Is(err, ErrDeclared) {
		t.Errorf("a change of a program's schedule: %v, want ErrDeclared", err)
	}
	for _, name := range []string{"declared", "made"} {
		err := inTx(t, db, func(tx pgx.Tx) error {
			_, err := Edit{Every: new(time.Minute), Kind: new("x")}.New(outbox.ID{}, name).CreateIn(t.Context(), tx, "eve")
			return err
		})
		if !errors.Is(err, ErrExists) {
			t.Errorf("%s is made once more: %v, want ErrExists", name, err)
		}
	}
	if diff := cmp.Diff(before, stored(t, db)); diff != "" || strings.Contains(log.String(), "replaces") {
		t.Errorf("what was refused changed something (-before +after):\n%s\n%s", diff, log.String())
	}

	// Also one that is declared just as it was made.
	s = newScheduler(t, db, Every("made", time.Hour, outbox.Raw{KindName: "made", Payload: []byte("{}")}, Options{}))
	s.declarer.log = slog.New(slog.NewTextHandler(&log, nil))
	declare(t, s)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.schedules WHERE set_by IS NULL`); n != 2 || !strings.Contains(log.String(), "made_by=ada") {
		t.Errorf("%d schedules are programs', want both, and a line in the log:\n%s", n, log.String())
	}
	if err := edit(t, db, "made", Edit{Queue: new("q")}); !errors.Is(err, ErrDeclared) {
		t.Errorf("a change of what is declared by now: %v, want ErrDeclared", err)
	}
}

// A tick that is due has one job, whichever comes first: its firing, or a change of the timing. Each waits for, or
// passes by, what the other has locked.
func TestATickHasOneJobWhileItsScheduleIsChanged(t *testing.T) {
	t.Parallel()
	due := func(t *testing.T) (*pgxpool.Pool, *Scheduler, string) {
		db := pgtest.New(t)
		create(t, db, "s", Edit{Every: new(time.Hour), Kind: new("old")})
		age(t, db, "s", time.Hour)
		return db, newScheduler(t, db), ask[time.Time](t, db, `SELECT next_at FROM outbox.schedules`).UTC().Format(time.RFC3339)
	}
	toYearly := Edit{Cron: new("@yearly"), Kind: new("new")}
	wantOne := func(t *testing.T, db *pgxpool.Pool, s *Scheduler, tick string) {
		t.Helper()
		if n := fire(t, s); n != 0 {
			t.Errorf("fired %d schedules after the change, want 0", n)
		}
		if got := firedFor(t, db, "s"); !cmp.Equal(got, []string{tick}) || ask[string](t, db, `SELECT kind FROM outbox.jobs`) != "old" {
			t.Errorf("fired for %v, want %s alone, by what held when it came", got, tick)
		}
		if !ask[bool](t, db, `SELECT expression = '@yearly' AND kind = 'new' AND next_at > now() FROM outbox.schedules`) {
			t.Errorf("stored is %v, want the change", stored(t, db))
		}
	}
	t.Run("the change has the lock", func(t *testing.T) {
		t.Parallel()
		db, s, tick := due(t)
		err := inTx(t, db, func(tx pgx.Tx) error {
			_, _, err := toYearly.ChangeIn(t.Context(), tx, outbox.RootTenant, "s", "ada")
			if n := fire(t, s); n != 0 {
				t.Errorf("fired %d schedules while it was changed, want it passed by", n)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		wantOne(t, db, s, tick)
	})
	t.Run("the firing has the lock", func(t *testing.T) {
		t.Parallel()
		db, s, tick := due(t)
		changed := make(chan error, 1)
		err := transact(t.Context(), s.pool, func(tx pgx.Tx) error {
			rows, err := sqlgen.New(tx).LockDueSchedules(t.Context(), sqlgen.LockDueSchedulesParams{SetAside: []string{}, Passed: []string{}, MaxSchedules: 1})
			if err != nil {
				return err
			}
			go func() {
				changed <- pgx.BeginFunc(context.Background(), db, func(tx pgx.Tx) error {
					_, _, err := toYearly.ChangeIn(context.Background(), tx, outbox.RootTenant, "s", "ada")
					return err
				})
			}()
			await(t, "the change waits for the firing", func() bool {
				return ask[bool](t, db, `SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database())`)
			})
			f, err := plan(rows[0], rows[0].Now.Time)
			if err != nil {
				return err
			}
			return store(t.Context(), tx, []firing{f})
		})
		if err = errors.Join(err, <-changed); err != nil {
			t.Fatal(err)
		}
		wantOne(t, db, s, tick)
	})
}

// The payload is validated before the transaction, which would keep the schedule's row, and the check that remembers it
// is asked for it again.
func TestAnEditIsCheckedBeforeItLocksTheSchedule(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, tenant := range []outbox.ID{outbox.RootTenant, {15: 7}} {
		e := Edit{Kind: new("report"), Every: new(time.Minute), Payload: []byte(`{}`)}
		if err := inTx(t, db, func(tx pgx.Tx) error {
			_, err := e.New(tenant, "s").CreateIn(t.Context(), tx, "ada")
			return err
		}); err != nil {
			t.Fatal(err)
		}
		checks := 0
		e = Edit{Payload: []byte(`{"a":1}`), Check: checked(func(kind string, payload outbox.Content) error {
			checks++
			if kind != "report" || string(payload.Bytes) != `{"a":1}` {
				t.Errorf("checked %s %s", kind, payload.Bytes)
			}
			_, err := db.Exec(t.Context(), `SELECT FROM outbox.schedules WHERE tenant_id = $1 FOR UPDATE NOWAIT`, tenant)
			return err
		})}
		if err := e.Precheck(t.Context(), db, tenant, "s"); err != nil || checks != 1 {
			t.Errorf("%d checks, %v", checks, err)
		}
		if err := e.Precheck(t.Context(), db, tenant, "none"); err != nil || checks != 1 {
			t.Errorf("of no schedule: %d checks, %v", checks, err)
		}
	}
}

type checked func(string, outbox.Content) error

func (c checked) Check(kind string, payload outbox.Content) error { return c(kind, payload) }
