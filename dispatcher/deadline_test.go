package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// expireLate does once what a reaper does with every deadline that has come.
func expireLate(ctx context.Context, db sqlgen.DBTX) (int64, error) {
	row, err := sqlgen.New(db).ExpireDeadlines(ctx, sqlgen.ExpireDeadlinesParams{
		FromDeadline:   pgtype.Timestamptz{InfinityModifier: pgtype.NegativeInfinity, Valid: true},
		BeforeDeadline: pgtype.Timestamptz{InfinityModifier: pgtype.Infinity, Valid: true},
		Overlap:        interval(0), Horizon: interval(0), Patience: interval(0), MaxJobs: 1000,
	})
	return row.Closed, err
}

// A claim leaves jobs past their deadline alone, whether or not a reaper has come.
func TestNothingStartsPastItsDeadline(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	late := enqueue(t, db, probe{1}, outbox.Options{Deadline: time.Now().Add(-time.Second)})
	early := enqueue(t, db, probe{2}, outbox.Options{Deadline: time.Now().Add(time.Hour)})
	enqueue(t, db, probe{3}, outbox.Options{})
	ran := make(chan int, 3)
	deadlines := make(chan time.Time, 3)
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		ran <- job.Args.N
		if until, ok := ctx.Deadline(); ok && job.Args.N == 2 {
			deadlines <- until
			deadlines <- job.Deadline
		}
		return nil
	}, dispatcher.KindConfig{Timeout: 5 * time.Hour}), quiet(nil))
	for range 2 {
		if n := receive(t, ran, "the others"); n == 1 {
			t.Error("the late one ran")
		}
	}
	await(t, db, "the others succeed", `SELECT count(*) = 2 FROM outbox.history WHERE status = 'succeeded'`)
	ofContext, ofJob := receive(t, deadlines, "the context's deadline"), receive(t, deadlines, "the job's")
	if off := ofJob.Sub(ofContext); off < -time.Minute || off > time.Minute {
		t.Errorf("the context ends at %s, the job's deadline is %s", ofContext, ofJob)
	}
	if got := ask[time.Time](t, db, `SELECT deadline FROM outbox.history WHERE id = $1`, early); !got.Equal(ofJob) {
		t.Errorf("the history has the deadline %s, the handler saw %s", got, ofJob)
	}
	d.stop(t)
	wantState(t, db, late, "pending attempt=0 epoch=0 lost=0 error=")
	if n, err := expireLate(t.Context(), db); n != 1 || err != nil {
		t.Fatalf("expired %d, %v; want 1", n, err)
	}
	wantState(t, db, late, "expired attempt=0 epoch=1 lost=0 error=")
}

// The dispatcher stops the handler, and the job expires, without a reaper.
func TestAHandlerIsStoppedAtTheDeadline(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	causes := make(chan error, 1)
	wake := make(chan struct{}, 1)
	d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		<-ctx.Done()
		causes <- context.Cause(ctx)
		await(t, db, "the database is past it, too", `SELECT clock_timestamp() >= deadline FROM outbox.jobs`)
		return dispatcher.Discard(errBoom)
	}), quiet(wake))
	id := enqueueDueSoon(t, db, d, wake)
	if cause := receive(t, causes, "the deadline"); !errors.Is(cause, dispatcher.ErrDeadline) {
		t.Errorf("cause = %v, want ErrDeadline", cause)
	}
	await(t, db, "it is closed", `SELECT count(*) = 1 FROM outbox.history WHERE closed_from = 'running' AND finished_at >= deadline`)
	wantState(t, db, id, "expired attempt=1 epoch=2 lost=0 error=deadline")
	if got := ask[string](t, db, `SELECT error_code || ' ' || error_message FROM outbox.attempts`); got != "deadline boom" {
		t.Errorf("recorded %q", got)
	}
}

// enqueueDueSoon enqueues a job whose deadline is two seconds after d has connected, or more: as many as this machine
// needs to start it in time.
func enqueueDueSoon(t *testing.T, db outbox.DB, d *running, wake chan<- struct{}) outbox.ID {
	t.Helper()
	return enqueueDueSoonWith(t, db, d, wake, outbox.Options{})
}

func enqueueDueSoonWith(t *testing.T, db outbox.DB, d *running, wake chan<- struct{}, opts outbox.Options) outbox.ID {
	t.Helper()
	awaitThat(t, "the dispatcher has started", func() bool { return strings.Contains(d.log.String(), "dispatcher started") })
	for within := 2 * time.Second; ; within *= 2 {
		opts.Deadline = dbNow(t, db).Add(within)
		id := enqueue(t, db, probe{}, opts)
		wake <- struct{}{}
		waits := func(more string) bool {
			return ask[bool](t, db, `SELECT EXISTS (SELECT FROM outbox.jobs WHERE id = $1 AND status = 'pending'`+more+`)`, id)
		}
		awaitThat(t, "it runs, or its time is over", func() bool { return !waits(` AND deadline > clock_timestamp()`) })
		if !waits(``) {
			return id
		}
		exec(t, db, `DELETE FROM outbox.jobs WHERE id = $1`, id)
	}
}

func dbNow(t *testing.T, db outbox.DB) time.Time {
	t.Helper()
	return ask[time.Time](t, db, `SELECT clock_timestamp()`)
}

// Whatever a handler returns that ignores its context, the outcome is refused: without any reaper, its success comes
// too late, and so does Complete.
func TestSuccessPastTheDeadlineIsRefused(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(db outbox.DB, job *outbox.Job[probe]) error{
		"returning nil": func(outbox.DB, *outbox.Job[probe]) error { return nil },
		"Complete": func(db outbox.DB, job *outbox.Job[probe]) error {
			return completeIn(db, job.Claimed)
		},
		"Guard": func(db outbox.DB, job *outbox.Job[probe]) error {
			return job.Guard(context.Background(), db)
		},
		"snoozing":        func(outbox.DB, *outbox.Job[probe]) error { return dispatcher.Snooze(time.Hour) },
		"asking for more": func(outbox.DB, *outbox.Job[probe]) error { return dispatcher.RetryAfter(time.Hour, errBoom) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			said := make(chan error, 1)
			wake := make(chan struct{}, 1)
			d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
				await(t, db, "the deadline comes", `SELECT clock_timestamp() >= deadline FROM outbox.jobs`)
				err := end(db, job)
				said <- err
				return err
			}), quiet(wake))
			id := enqueueDueSoon(t, db, d, wake)
			err := receive(t, said, "the handler")
			if (name == "Complete" || name == "Guard") && !errors.Is(err, outbox.ErrLeaseLost) {
				t.Errorf("%s = %v, want ErrLeaseLost", name, err)
			}
			await(t, db, "it is closed", `SELECT count(*) = 1 FROM outbox.history`)
			d.stop(t)
			if got := ask[string](t, db, `SELECT status || ' from ' || closed_from || ' ' || epoch FROM outbox.history WHERE id = $1`, id); got != "expired from running 2" {
				t.Errorf("the job is %s", got)
			}
			if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != 0 {
				t.Errorf("leases reported as lost = %v, want none", n)
			}
		})
	}
}

// What became of an attempt that is refused after its deadline, the database says. A reaper that was faster has expired
// the job; but if a reaper took the job from its worker before, the attempt has lost its lease, and the job may succeed
// elsewhere.
func TestAnAttemptThatIsRefusedAfterItsDeadlineIsReportedAsItEnded(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end     func(t *testing.T, db outbox.DB)
		lost    float64
		expired int
	}{
		"a reaper was faster": {func(t *testing.T, db outbox.DB) {
			if n, err := expireLate(t.Context(), db); n != 1 || err != nil {
				t.Errorf("expired %d, %v; want 1", n, err)
			}
		}, 0, 1},
		"another worker has it": {func(t *testing.T, db outbox.DB) {
			exec(t, db, `UPDATE outbox.jobs SET epoch = epoch + 2, attempt = attempt + 1, lease_owner = 'another', deadline = NULL`)
		}, 1, 0},
	} {
		for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
			for _, key := range []string{"", "k"} {
				t.Run(fmt.Sprintf("%s, root %t, key %q", name, tenant == outbox.RootTenant, key), func(t *testing.T) {
					t.Parallel()
					db := pgtest.New(t)
					ran := make(chan struct{})
					wake := make(chan struct{}, 1)
					d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
						<-ctx.Done()
						await(t, db, "the database is past the deadline, too", `SELECT clock_timestamp() >= deadline FROM outbox.jobs`)
						c.end(t, db)
						close(ran)
						return nil
					}), quiet(wake))
					enqueueDueSoonWith(t, db, d, wake, outbox.Options{Tenant: tenant, Key: outbox.KeyRules{Name: key}})
					receive(t, ran, "the handler")
					d.stop(t)
					if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != c.lost {
						t.Errorf("leases reported as lost = %v, want %v", n, c.lost)
					}
					if n := strings.Count(d.log.String(), "event=job_expired"); n != c.expired {
						t.Errorf("attempts reported as expired = %v, want %v", n, c.expired)
					}
				})
			}
		}
	}
}

func completeIn(db outbox.DB, job *outbox.Claimed) error {
	return pgx.BeginFunc(context.Background(), db.(interface {
		Begin(context.Context) (pgx.Tx, error)
	}), func(tx pgx.Tx) error { return job.Complete(context.Background(), tx) })
}

// If the policy would retry a job after its deadline, the job waits for the deadline, and expires.
func TestARetryBeyondTheDeadlineExpires(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(time.Hour)
	id := enqueue(t, db, probe{}, outbox.Options{Deadline: time.Now().Add(10 * time.Minute)})
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return errBoom }), config)
	await(t, db, "it failed", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'retrying'`)
	if n, err := expireLate(t.Context(), db); n != 0 || err != nil {
		t.Fatalf("expired %d before its time, %v", n, err)
	}
	exec(t, db, `UPDATE outbox.jobs SET deadline = now()`)
	if n, err := expireLate(t.Context(), db); n != 1 || err != nil {
		t.Fatalf("expired %d, %v; want 1", n, err)
	}
	wantState(t, db, id, "expired attempt=1 epoch=3 lost=0 error=error")
}

// While workers settle jobs at the very moment of their deadline, reapers expire them: each job ends once, one way or
// the other.
func TestAttemptsThatEndAtTheDeadlineEndOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 300
	enqueueProbes(t, db, jobs, outbox.Options{Deadline: time.Now().Add(time.Hour)})
	claimed, err := sqlgen.New(db).ClaimJobs(t.Context(), claimParams("w", jobs))
	if err != nil || len(claimed) != jobs {
		t.Fatalf("claimed %d, %v", len(claimed), err)
	}
	exec(t, db, `UPDATE outbox.jobs SET deadline = clock_timestamp() + random() * interval '300 milliseconds'`)
	var racing sync.WaitGroup
	for worker := range 3 {
		racing.Go(func() {
			for i := worker; i < jobs; i += 3 {
				_, err := sqlgen.New(db).SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{
					Ids: []pgtype.UUID{claimed[i].ID}, Epochs: []int64{claimed[i].Epoch}, Results: [][]byte{nil},
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	racing.Go(func() {
		for n := int64(0); n >= 0; {
			if _, err := expireLate(t.Context(), db); err != nil {
				t.Error(err)
				return
			}
			if ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) == 0 {
				n = -1
			}
		}
	})
	racing.Wait()
	got := ask[int](t, db, `SELECT count(*) FILTER (WHERE status = 'expired' AND finished_at >= deadline OR status = 'succeeded') FROM outbox.history`)
	if distinct := ask[int](t, db, `SELECT count(DISTINCT id) FROM outbox.history`); got != jobs || distinct != jobs {
		t.Errorf("%d rows of %d jobs in the history, want %d", got, distinct, jobs)
	}
	t.Logf("succeeded before their deadline: %d", ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = 'succeeded'`))
}
