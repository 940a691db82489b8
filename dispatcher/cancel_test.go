package dispatcher_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func cancelJob(t *testing.T, db outbox.DB, id outbox.ID, want string) {
	t.Helper()
	if got := ask[string](t, db, `SELECT outbox.cancel($1)::text`, id); got != want {
		t.Errorf("cancel = %s, want %s", got, want)
	}
}

// Even if every notification is lost, the handler of a cancelled job is stopped, and its error is kept.
func TestACancelledHandlerIsStopped(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	started, causes := make(chan struct{}, 1), make(chan error, 1)
	id := enqueue(t, db, probe{}, outbox.Options{})
	d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		close(started)
		<-ctx.Done()
		causes <- context.Cause(ctx)
		return errors.New("stopped after page 7")
	}), quiet(nil))
	receive(t, started, "the handler to start")
	asked := time.Now()
	cancelJob(t, db, id, "running")
	if cause := receive(t, causes, "the cancellation"); !errors.Is(cause, dispatcher.ErrCancelled) {
		t.Errorf("cause = %v, want ErrCancelled", cause)
	}
	t.Logf("noticed after %s, nobody notified", time.Since(asked))
	await(t, db, "it is closed", `SELECT count(*) = 1 FROM outbox.history`)
	wantState(t, db, id, "cancelled attempt=1 epoch=2 lost=0 error=cancelled")
	kept := ask[string](t, db, `
		SELECT concat_ws('|', closed_from, last_error_message, cancel_requested_at IS NOT NULL, worker = $2,
		    (SELECT string_agg(error_code || ' ' || error_message, ',') FROM outbox.attempts WHERE job_id = $1 AND epoch = 1))
		FROM outbox.history WHERE id = $1`, id, d.Worker())
	if want := "running|stopped after page 7|t|t|cancelled stopped after page 7"; kept != want {
		t.Errorf("kept %q, want %q", kept, want)
	}
	awaitThat(t, "it is reported", func() bool { return strings.Contains(d.log.String(), "job_cancelled") })
	if log := d.log.complaints(); log != "" {
		t.Errorf("complaints: %s", log)
	}
}

// There is no listener, so no notification arrives. Whenever a job is cancelled, between two looks or while its handler
// starts, the handler learns of it within a second.
func TestAHandlerHearsOfACancellationWithinASecond(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 12
	started, heard := make(chan int, jobs), [jobs]chan time.Time{}
	for n := range heard {
		heard[n] = make(chan time.Time, 1)
	}
	ids := enqueueProbes(t, db, jobs, outbox.Options{})
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		started <- job.Args.N
		<-ctx.Done()
		heard[job.Args.N] <- time.Now()
		return context.Cause(ctx)
	}), quiet(nil))
	stalled := pgtest.Stalls(t, db)
	var asked [jobs]time.Time
	tick := time.NewTicker(170 * time.Millisecond)
	defer tick.Stop()
	for range jobs {
		n := receive(t, started, "a handler to start")
		cancelJob(t, db, ids[n], "running")
		asked[n] = time.Now()
		<-tick.C
	}
	var after [jobs]time.Duration
	for n := range jobs {
		after[n] = receive(t, heard[n], "the cancellation").Sub(asked[n])
	}
	excused := stalled()
	t.Logf("heard after %v; the machine stood still for %s", after, excused)
	for n, wait := range after {
		if wait > time.Second+excused {
			t.Errorf("handler %d heard of it after %s, want a second at most, and %s that the machine stood still", n, wait, excused)
		}
	}
}

// Whatever error the handler of a cancelled job returns, and whatever else ends its attempt, the job ends cancelled,
// whether or not the request was noticed before.
func TestACancelledJobIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		end  func(ctx context.Context) error
		want string
	}{
		"an error":       {func(context.Context) error { return errBoom }, "cancelled attempt=1 epoch=2 lost=0 error="},
		"retry after":    {func(context.Context) error { return dispatcher.RetryAfter(0, errBoom) }, "cancelled attempt=1 epoch=2 lost=0 error="},
		"discard":        {func(context.Context) error { return dispatcher.Discard(errBoom) }, "cancelled attempt=1 epoch=2 lost=0 error="},
		"snooze":         {func(context.Context) error { return dispatcher.Snooze(0) }, "cancelled attempt=1 epoch=2 lost=0 error="},
		"panic":          {func(context.Context) error { return explode() }, "cancelled attempt=1 epoch=2 lost=0 error="},
		"success counts": {func(context.Context) error { return nil }, "succeeded attempt=1 epoch=1 lost=0 error="},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			started, goOn := make(chan struct{}), make(chan struct{})
			id := enqueue(t, db, probe{}, outbox.Options{})
			start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
				close(started) // a second start panics
				<-goOn
				return c.end(ctx)
			}), quiet(nil))
			receive(t, started, "the handler to start")
			cancelJob(t, db, id, "running")
			close(goOn)
			await(t, db, "it is closed", `SELECT count(*) = 1 FROM outbox.history`)
			if got := state(t, db, id); !strings.HasPrefix(got, c.want) {
				t.Errorf("job is %q, want %q", got, c.want)
			}
			if !ask[bool](t, db, `SELECT cancel_requested_at IS NOT NULL FROM outbox.history`) {
				t.Error("the request is forgotten")
			}
		})
	}
}

// A stop is no cancellation: of the interrupted jobs those that were cancelled do not go back, and the others do.
func TestAStopCancelsWhatWasCancelled(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	started := make(chan int, 2)
	cancelled := enqueue(t, db, probe{1}, outbox.Options{})
	other := enqueue(t, db, probe{2}, outbox.Options{})
	config := quiet(nil)
	config.GracePeriod = -1
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		started <- job.Args.N
		<-ctx.Done()
		return ctx.Err()
	}), config)
	receive(t, started, "the first handler")
	receive(t, started, "the second handler")
	tx := begin(t, db) // not seen by the dispatcher before it stops
	if _, err := tx.Exec(t.Context(), `SELECT outbox.cancel($1)`, cancelled); err != nil {
		t.Fatal(err)
	}
	d.cancel()
	pgtest.AwaitLocks(t, db, 1) // the settlement waits for the request
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d.wait(t)
	wantState(t, db, cancelled, "cancelled attempt=1 epoch=2 lost=0 error=")
	wantState(t, db, other, "pending attempt=0 epoch=2 lost=0 error=")
}

// counter counts the statements that contain a text.
type counter struct {
	text string
	n    atomic.Int64
}

func (c *counter) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if strings.Contains(data.SQL, c.text) {
		c.n.Add(1)
	}
	return ctx
}

func (c *counter) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// traced returns a second pool to the same database whose statements are counted.
func traced(t *testing.T, db *pgxpool.Pool, c *counter) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	config.ConnConfig.Tracer = c
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

// No query looks for cancellations while no handler runs for long, and a storm of wake-ups causes a bounded number of
// looks.
func TestShortJobsAreNotAskedFor(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	asked := &counter{text: "ListCancelRequests"}
	wake := make(chan struct{}, 1)
	long, goOn := make(chan struct{}), make(chan struct{})
	enqueueProbes(t, db, 200, outbox.Options{})
	start(t, traced(t, db, asked), handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Args.N == -1 {
			close(long)
			<-goOn
		}
		return nil
	}), quiet(wake))
	begun := time.Now()
	storm := func(done func() bool) {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !done() {
			select {
			case wake <- struct{}{}:
			default:
			}
			<-tick.C
		}
	}
	storm(func() bool { return ask[int](t, db, `SELECT count(*) FROM outbox.history`) == 200 })
	if n, took := asked.n.Load(), time.Since(begun); n > 0 && took < 400*time.Millisecond {
		t.Errorf("asked %d times within %s of short jobs", n, took)
	}
	enqueue(t, db, probe{-1}, outbox.Options{})
	storm(func() bool {
		select {
		case <-long:
			return true
		default:
			return false
		}
	})
	begun = time.Now()
	before := asked.n.Load()
	storm(func() bool { return asked.n.Load() >= before+3 })
	if n, most := asked.n.Load()-before, 1+time.Since(begun)/(250*time.Millisecond); n > int64(most) {
		t.Errorf("asked %d times in %s, want at most %d", n, time.Since(begun), most)
	}
	close(goOn)
}

// Between the refusal of an outcome and the closing, a reaper may have closed the job; and a statement that fails
// half-way is repeated. Either way each job is closed once, and nothing else is reported as lost.
func TestOutcomesThatAreRefusedAreClosedOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 40
	ids := enqueueProbes(t, db, jobs, outbox.Options{})
	started, goOn := make(chan struct{}, jobs), make(chan struct{})
	// The closing statement fails twice, in the middle of a batch.
	exec(t, db, `
		CREATE SEQUENCE tries;
		CREATE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			IF nextval('tries') <= 2 THEN RAISE EXCEPTION 'not yet' USING ERRCODE = 'lock_not_available'; END IF;
			RETURN NEW;
		END $$;
		CREATE TRIGGER fail_twice BEFORE INSERT ON outbox.history FOR EACH ROW WHEN (NEW.status = 'cancelled') EXECUTE FUNCTION fail_twice()`)
	config := quiet(nil)
	config.Backoff = dispatcher.Waits(time.Hour)
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		started <- struct{}{}
		<-goOn
		if job.Args.N%4 == 0 {
			return nil
		}
		return errBoom
	}), config)
	for range jobs {
		receive(t, started, "a handler")
	}
	for i := range jobs / 2 {
		cancelJob(t, db, ids[i], "running")
	}
	close(goOn)
	await(t, db, "all are settled", `SELECT count(*) = 0 FROM outbox.jobs WHERE status = 'running'`)
	d.stop(t)
	got := ask[string](t, db, `
		SELECT string_agg(status || ' ' || n, ', ' ORDER BY status) FROM (
			SELECT status::text, count(*) AS n FROM outbox.history GROUP BY status
			UNION ALL SELECT status::text, count(*) FROM outbox.jobs GROUP BY status) AS s`)
	if want := "cancelled 15, retrying 15, succeeded 10"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if n := ask[int](t, db, `SELECT count(DISTINCT id) FROM outbox.history`); n != 25 {
		t.Errorf("different jobs in the history = %d, want 25", n)
	}
	if n := d.metric(t, "outbox_dispatcher_leases_lost_total"); n != 0 {
		t.Errorf("leases reported as lost = %v, want none", n)
	}
	if n := d.metric(t, "outbox_dispatcher_attempts_total"); n != jobs {
		t.Errorf("attempts counted = %v, want %d", n, jobs)
	}
}
