package dispatcher_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// next is the follow-up of most tests. No dispatcher works its queue.
type next struct {
	N int `json:"n"`
}

func (next) Kind() string { return "next" }

// then adds a follow-up to a queue that no dispatcher works.
func then(t *testing.T, job *outbox.Job[probe]) outbox.ID {
	id, err := job.Then(next{job.Args.N}, outbox.Options{Queue: "later"})
	if err != nil {
		t.Errorf("Then = %v", err)
	}
	return id
}

// Whatever becomes of an attempt, its follow-ups exist when its success is in the history, and only then.
func TestFollowUpsExistExactlyWhenTheSettlementDoes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		handler handler // after Then
		settled string  // a query that reports when the job is settled
		follows bool
	}{
		"it succeeds": {func(context.Context, *outbox.Job[probe]) error { return nil }, `SELECT EXISTS (SELECT FROM outbox.history)`, true},
		"it fails": {
			func(context.Context, *outbox.Job[probe]) error { return errBoom },
			`SELECT EXISTS (SELECT FROM outbox.jobs WHERE status = 'retrying')`, false,
		},
		"it fails for good": {
			func(context.Context, *outbox.Job[probe]) error { return dispatcher.Discard(errBoom) },
			`SELECT EXISTS (SELECT FROM outbox.jobs WHERE status = 'failed')`, false,
		},
		"it is snoozed": {
			func(context.Context, *outbox.Job[probe]) error { return dispatcher.Snooze(time.Hour) },
			`SELECT EXISTS (SELECT FROM outbox.jobs WHERE status = 'pending' AND epoch = 2)`, false,
		},
		"it panics": {
			func(context.Context, *outbox.Job[probe]) error { panic("boom") },
			`SELECT EXISTS (SELECT FROM outbox.jobs WHERE status = 'retrying')`, false,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			id := enqueue(t, db, probe{7}, outbox.Options{})
			var child outbox.ID
			config := quiet(nil)
			config.Backoff = dispatcher.Waits(time.Hour)
			d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				child = then(t, job)
				return c.handler(ctx, job)
			}), config)
			await(t, db, "the attempt is settled", c.settled)
			d.stop(t)
			wantFollowUps(t, db, id, child, c.follows)
		})
	}
}

func wantFollowUps(t *testing.T, db outbox.DB, parent, child outbox.ID, want bool) {
	t.Helper()
	got := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'next'`)
	if !want && got != 0 {
		t.Errorf("follow-ups = %d, want none", got)
	}
	if want && (got != 1 || !ask[bool](t, db, `
		SELECT EXISTS (SELECT FROM outbox.jobs WHERE id = $1 AND parent_id = $2 AND payload = '{"n":7}' AND status = 'pending')`, child, parent)) {
		t.Errorf("follow-ups = %d, want one, of job %s", got, parent)
	}
}

// The settlement is the handler's own transaction here.
func TestFollowUpsExistExactlyWhenCompleteCommits(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	id := enqueue(t, db, probe{7}, outbox.Options{})
	children := make(chan outbox.ID, 3)
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		child := then(t, job)
		return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
			if err := job.Complete(ctx, tx); err != nil {
				return err
			}
			if _, err := job.Then(next{8}, outbox.Options{}); !errors.Is(err, engine.ErrEnded) {
				t.Errorf("Then after Complete = %v, want %v", err, engine.ErrEnded)
			}
			if n := ask[int](t, tx, `SELECT count(*) FROM outbox.jobs WHERE kind = 'next'`); n != 1 {
				t.Errorf("follow-ups that the transaction sees = %d, want 1", n)
			}
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'next'`); n != 0 {
				t.Errorf("follow-ups that others see before the commit = %d, want none", n)
			}
			if job.Attempt < 3 {
				return dispatcher.RetryAfter(0, errBoom) // rolls back
			}
			children <- child
			return nil
		})
	}), quiet(nil))
	await(t, db, "the job succeeds", `SELECT EXISTS (SELECT FROM outbox.history)`)
	d.stop(t)
	wantFollowUps(t, db, id, <-children, true)
}

// timed is a protector that records the deadline of a handler's context.
type timed struct {
	t   *testing.T
	ctx context.Context
}

func (p timed) Seal(ctx context.Context, _ outbox.Part, plain outbox.Content) (outbox.Content, error) {
	want, _ := p.ctx.Deadline()
	if got, ends := ctx.Deadline(); !ends || !got.Equal(want) {
		p.t.Errorf("a follow-up's protector has until %s, %t; want the handler's %s", got, ends, want)
	}
	return plain, nil
}

func (timed) Open(_ context.Context, _ outbox.Part, sealed outbox.Content) (outbox.Content, error) {
	return sealed, nil
}

// Follow-ups run, know their tenant, carry the trace on, and are sealed within the time of the attempt.
func TestAFollowUpRuns(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenant := outbox.NewID()
	enqueue(t, db, probe{1}, outbox.Options{Tenant: tenant, Headers: map[string]string{"trace": "t1", "schedule": "s", "scheduled_for": "2026-06-01T12:00:00Z"}})
	mux := handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		for n := range 3 {
			if _, err := job.Then(next{n}, outbox.Options{Protect: timed{t, ctx}}); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	ran := make(chan *outbox.Job[next], 3)
	dispatcher.HandleMany(mux, func(ctx context.Context, jobs []*outbox.Job[next]) []error {
		for _, job := range jobs {
			if _, err := job.Then(outbox.Raw{KindName: "last", Payload: []byte("1")}, outbox.Options{Protect: timed{t, ctx}}); err != nil {
				t.Error(err)
			}
			ran <- job
		}
		return make([]error, len(jobs))
	}, dispatcher.BatchConfig{})
	start(t, db, mux, quiet(nil)) // looks when it starts, and when it wakes itself
	for range 3 {
		if job := receive(t, ran, "a follow-up"); job.Tenant != tenant || !maps.Equal(job.Headers(), map[string]string{"trace": "t1"}) {
			t.Errorf("the follow-up is of tenant %s with headers %v, want its parent's, without the tick", job.Tenant, job.Headers())
		}
	}
	await(t, db, "they succeed", `SELECT count(*) = 4 FROM outbox.history`)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history AS child JOIN outbox.history AS parent ON parent.id = child.parent_id`); n != 3 {
		t.Errorf("jobs in the history with a parent = %d, want 3", n)
	}
}

// A follow-up accepts every option of an enqueue, with two exceptions.
func TestAFollowUpIsStoredLikeAnEnqueuedJob(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	values := map[string]any{
		"Queue": "later", "Priority": -3, "Delay": time.Hour, "RunAt": time.Now().Add(time.Hour).Round(time.Second), "MaxAttempts": 4,
		"Timeout": time.Minute, "Backoff": outbox.Backoff{0, time.Hour}, "Key.Name": "a {\"key\"}", "Headers": map[string]string{"a": "NULL"}, "watched": true,
		"Deadline": time.Now().Add(2 * time.Hour).Round(time.Second), "Hold": true, "Streamed": true,
		"Key.MaxActive": 3, "Key.Ordered": true, "Key.Sequence": int64(7), "Key.OnDeath": outbox.ParkKey, "Key.ParkAfter": time.Minute,
		"Key.OnLapse": outbox.FailStale,
	}
	needs := map[string]outbox.Options{ // options that an option requires
		"Key.MaxActive": {Key: outbox.KeyRules{Name: "k"}}, "Key.Ordered": {Key: outbox.KeyRules{Name: "k"}}, "Key.OnLapse": {Key: outbox.KeyRules{Name: "k"}},
		"Key.Sequence": {Key: outbox.KeyRules{Name: "k", Ordered: true}}, "Key.OnDeath": {Key: outbox.KeyRules{Name: "k", Ordered: true}}, "Key.ParkAfter": {Key: outbox.KeyRules{Name: "k", Ordered: true, OnDeath: outbox.ParkKey}},
	}
	names := []string{"watched"}                    // not exported: package await sets it
	refused := []string{"IdempotencyKey", "Tenant", // see TestThenRefuses
		"Key.MaxQueued", "Key.WhenFull", // a producer learns of a full key, and a settlement cannot
		"Protect",         // seals differently each time
		"Caller", "Check"} // are not stored as columns: see the tests of package outbox
	for _, field := range reflect.VisibleFields(reflect.TypeFor[outbox.KeyRules]()) {
		names = append(names, "Key."+field.Name)
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[outbox.Options]()) {
		if field.IsExported() && field.Name != "Key" {
			names = append(names, field.Name)
		}
	}
	for _, field := range names {
		if strings.Contains(strings.Join(refused, " "), field) {
			continue
		}
		value, known := values[field]
		if !known {
			t.Errorf("Options.%s is not known here: does Then store it, and SettleSucceededThen?", field)
			continue
		}
		opts := needs[field]
		set := reflect.ValueOf(&opts).Elem()
		if rule, ofKey := strings.CutPrefix(field, "Key."); field == "watched" {
			*engine.InternalOf(&opts) = true
		} else if ofKey {
			set.FieldByName("Key").FieldByName(rule).Set(reflect.ValueOf(value))
		} else {
			set.FieldByName(field).Set(reflect.ValueOf(value))
		}
		exec(t, db, `DELETE FROM outbox.jobs`)
		enqueue(t, db, probe{}, outbox.Options{Queue: "work"})
		var job outbox.Claimed
		job.ID, job.Epoch, job.Tenant = outbox.ID(ask[[16]byte](t, db, `SELECT id FROM outbox.jobs`)), 0, outbox.RootTenant
		child, err := job.Then(next{7}, opts)
		if err != nil {
			t.Fatal(err)
		}
		if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			exec(t, tx, `UPDATE outbox.jobs SET status = 'running', epoch = 1, attempt = 1, lease_owner = 'w', lease_expires_at = now() + interval '1 hour', started_at = now()`)
			job.Epoch = 1
			return job.Complete(t.Context(), tx)
		}); err != nil {
			t.Fatal(err)
		}
		want, got := stored(t, db, enqueue(t, db, next{7}, opts)), stored(t, db, child)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with Options.%s (-enqueued +follow-up):\n%s", field, diff)
		}
	}
}

// stored returns a row without the columns that differ from job to job.
func stored(t *testing.T, db outbox.DB, id outbox.ID) string {
	t.Helper()
	return ask[string](t, db, `
		SELECT jsonb_pretty(to_jsonb(j) - '{id, created_at, parent_id, run_at, line_position}'::text[]
			|| jsonb_build_object('place', CASE WHEN line_position = 7 THEN '7' WHEN line_position > 0 THEN 'by commit' END)
			|| jsonb_build_object('due', CASE WHEN run_at = date_trunc('second', run_at) THEN run_at::text ELSE (run_at - created_at)::text END))
		FROM outbox.jobs AS j WHERE id = $1`, id)
}

func TestThenRefuses(t *testing.T) {
	t.Parallel()
	job := &outbox.Claimed{ID: outbox.NewID(), Tenant: outbox.RootTenant}
	big := outbox.Raw{KindName: "big", Payload: make([]byte, engine.MaxFollowUpBytes-1), ContentType: "application/octet-stream"}
	for field, try := range map[string]func() error{
		"Options.IdempotencyKey": func() error { _, err := job.Then(next{}, outbox.Options{IdempotencyKey: "k"}); return err },
		"Options.Tenant":         func() error { _, err := job.Then(next{}, outbox.Options{Tenant: outbox.NewID()}); return err },
		"Options.Key.MaxQueued": func() error {
			_, err := job.Then(next{}, outbox.Options{Key: outbox.KeyRules{Name: "k", MaxQueued: 1}})
			return err
		},
		"Options.Queue": func() error { _, err := job.Then(next{}, outbox.Options{Queue: "no queue"}); return err },
		"Args":          func() error { _, err := job.Then(nil, outbox.Options{}); return err },
	} {
		err := try()
		if bad, ok := errors.AsType[*outbox.InvalidError](err); !ok || bad.Field != field {
			t.Errorf("Then with a bad %s = %v, want an InvalidError of it", field, err)
		}
	}
	if follows, bytes := engine.InternalOf(job).FollowUps.End(0); follows || bytes != 0 {
		t.Errorf("something follows, %d bytes, though all was refused", bytes)
	}
	if _, err := job.Then(next{}, outbox.Options{}); !errors.Is(err, engine.ErrEnded) {
		t.Errorf("Then after the handler has returned = %v, want %v", err, engine.ErrEnded)
	}

	many, large := new(outbox.Claimed), new(outbox.Claimed)
	var wg sync.WaitGroup // it may be called concurrently
	var added atomic.Int64
	for range engine.MaxFollowUps + 20 {
		wg.Go(func() {
			_, err := many.Then(next{}, outbox.Options{})
			if bad, ok := errors.AsType[*outbox.InvalidError](err); err == nil {
				added.Add(1)
			} else if !ok || bad.Field != "Then" {
				t.Errorf("one too many = %v, want an InvalidError of Then", err)
			}
		})
	}
	wg.Wait()
	if added.Load() != engine.MaxFollowUps {
		t.Errorf("follow-ups added = %d, want %d", added.Load(), engine.MaxFollowUps)
	}
	if _, err := large.Then(big, outbox.Options{}); err != nil {
		t.Error(err)
	}
	if _, err := large.Then(next{}, outbox.Options{}); err == nil || !strings.Contains(err.Error(), "bytes of follow-ups") {
		t.Errorf("too many bytes = %v", err)
	}
}

// The settling statement fails because of a follow-up. The success is not stored without it: either both are stored in
// the end, or the job waits for an operator, with the reason.
func TestASettlementWithoutItsFollowUpsIsNone(t *testing.T) {
	t.Parallel()
	t.Run("for now", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		exec(t, db, `
			CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$;
			CREATE TRIGGER refuse BEFORE INSERT ON outbox.jobs FOR EACH ROW WHEN (NEW.kind = 'next') EXECUTE FUNCTION refuse()`)
		id := enqueue(t, db, probe{7}, outbox.Options{})
		others := enqueueProbes(t, db, 20, outbox.Options{Queue: "other"})
		var runs atomic.Int64
		var child outbox.ID
		config := quiet(nil)
		config.Queues = map[string]dispatcher.QueueConfig{"default": {}, "other": {}}
		d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
			if job.Queue == "default" {
				runs.Add(1)
				child = then(t, job)
			}
			return nil
		}), config)
		await(t, db, "the others are settled", `SELECT count(*) = $1 FROM outbox.history WHERE queue = 'other'`, len(others))
		awaitThat(t, "it was refused", func() bool { return strings.Contains(d.log.String(), "not this one") })
		if got := state(t, db, id); !strings.HasPrefix(got, "running") {
			t.Errorf("the job is %s, want it to stay ours", got)
		}
		exec(t, db, `DROP TRIGGER refuse ON outbox.jobs`)
		await(t, db, "the job succeeds", `SELECT EXISTS (SELECT FROM outbox.history WHERE id = $1)`, id)
		d.stop(t)
		wantFollowUps(t, db, id, child, true)
		if runs.Load() != 1 {
			t.Errorf("the handler ran %d times, want once", runs.Load())
		}
	})
	t.Run("for ever", func(t *testing.T) {
		t.Parallel()
		db := pgtest.New(t)
		exec(t, db, `ALTER TABLE outbox.jobs ADD CONSTRAINT refuse CHECK (kind <> 'next')`)
		id := enqueue(t, db, probe{7}, outbox.Options{})
		var child outbox.ID
		wake := make(chan struct{}, 1)
		d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
			child = then(t, job)
			return nil
		}), quiet(wake))
		await(t, db, "the job waits for a person", `SELECT EXISTS (SELECT FROM outbox.jobs WHERE status = 'failed')`)
		wantState(t, db, id, "failed attempt=1 epoch=2 lost=0 error=follow_ups_not_stored")
		wantFollowUps(t, db, id, child, false)
		exec(t, db, `ALTER TABLE outbox.jobs DROP CONSTRAINT refuse`)
		exec(t, db, `UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, attempt = 0`) // as an operator does
		wake <- struct{}{}
		await(t, db, "the job succeeds", `SELECT EXISTS (SELECT FROM outbox.history)`)
		d.stop(t)
		wantFollowUps(t, db, id, child, true)
	})
}
