package dispatcher_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestConfigReportsEveryMistakeAtOnce(t *testing.T) {
	var mux dispatcher.Mux
	mux.HandleRaw("a", ignore, dispatcher.KindConfig{Timeout: -time.Second, FailOn: []string{"", "fine"}})
	mux.HandleRaw("b", ignore, dispatcher.KindConfig{OutageLimit: -1})
	mux.HandleRaw("c", ignore, dispatcher.KindConfig{Timeout: 30}) // meant to be seconds
	_, err := dispatcher.New(nil, &mux, dispatcher.Config{
		Queues: map[string]dispatcher.QueueConfig{
			"":                       {},
			strings.Repeat("q", 129): {},
			"negative":               {Concurrency: -1},
			"huge":                   {Concurrency: 100_001},
			"no such!":               {},
		},
		Worker:               "a b",
		LeaseTTL:             time.Millisecond,
		PollInterval:         time.Millisecond,
		FallbackPollInterval: -time.Second,
		Timeout:              math.MaxInt64,
		GracePeriod:          math.MaxInt64,
	})
	if err == nil {
		t.Fatal("New accepts it")
	}
	for _, want := range []string{
		"name is empty, want", "name is 129 bytes long", `name is "no such!": byte 2 is " "`, "Concurrency is -1", "Concurrency is 100001", `kind "a": KindConfig.Timeout is -1s`,
		`kind "c": KindConfig.Timeout is 30ns, want 1ms to 100 years, or 0 for that of the process`, `has the code ""`,
		`Worker is "a b", want up to 128 characters without spaces`, "LeaseTTL is 1ms, want 1s to 100 years", "PollInterval is 1ms", "FallbackPollInterval is -1s",
		"Timeout is 2562047h", "GracePeriod is 2562047h",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %s:\n%v", want, err)
		}
	}
	want := []string{
		"Config.Queues", `Config.Queues["huge"].Concurrency`, `Config.Queues["negative"].Concurrency`, "Config.Queues", "Config.Queues",
		"Config.Worker", "Config.LeaseTTL", "Config.PollInterval", "Config.FallbackPollInterval", "Config.Timeout", "Config.GracePeriod", "KindConfig.Timeout", "KindConfig.FailOn", "KindConfig.Timeout",
	}
	if diff := cmp.Diff(want, fieldsOf(err)); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
}

// fieldsOf returns the fields that an error names, one for each mistake.
func fieldsOf(err error) (fields []string) {
	switch e := err.(type) {
	case *outbox.InvalidError:
		return []string{e.Field}
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			fields = append(fields, fieldsOf(one)...)
		}
	case interface{ Unwrap() error }:
		return fieldsOf(e.Unwrap())
	default:
		return []string{"none: " + err.Error()}
	}
	return fields
}

func TestRunOnlyOnce(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	d := start(t, db, new(dispatcher.Mux), quiet(nil))
	awaitThat(t, "it runs", func() bool { return d.Ready() == nil })
	if err := d.Run(t.Context()); err == nil {
		t.Error("a second Run returns nil")
	}
}

func TestNotReadyBeforeRun(t *testing.T) {
	t.Parallel()
	d, err := dispatcher.New(pgtest.New(t), new(dispatcher.Mux), quiet(nil))
	if err != nil {
		t.Fatal(err)
	}
	if d.Ready() == nil {
		t.Error("Ready() = nil before Run")
	}
}

func wantNothingRunning(t *testing.T, db outbox.DB) {
	t.Helper()
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running' OR lease_owner IS NOT NULL`); n != 0 {
		t.Errorf("jobs still running after Run returned = %d", n)
	}
}

func TestStopLetsRunningJobsFinish(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 10, outbox.Options{})
	finish := make(chan struct{})
	var began atomic.Int32
	d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		began.Add(1)
		<-finish
		return context.Cause(ctx) // nil: not cut off
	}), quiet(nil))
	awaitThat(t, "all run", func() bool { return began.Load() == 10 }) // what is only claimed goes back at a stop
	d.cancel()
	enqueueProbes(t, db, 5, outbox.Options{Priority: 1})
	close(finish)
	d.wait(t)
	wantNothingRunning(t, db)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = 'succeeded' AND attempt = 1 AND epoch = 1`); n != 10 {
		t.Errorf("jobs that finished = %d, want 10", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'pending' AND epoch = 0`); n != 5 {
		t.Errorf("untouched jobs that came after the stop = %d, want 5", n)
	}
}

// listen returns a function that waits for one more notification to the dispatchers.
func listen(t *testing.T, db *pgxpool.Pool) (notified func(what string)) {
	t.Helper()
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `LISTEN `+engine.Channel); err != nil {
		t.Fatal(err)
	}
	return func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if _, err := conn.WaitForNotification(ctx); err != nil {
			t.Errorf("the other processes were not told: %s: %v", what, err)
		}
	}
}

// The others are notified of a job that goes back when its time is over: they have workers for it, and one of them may
// have passed it by while a third had its row locked. No other process's timer knows of a job that is due later.
func TestOthersAreNotifiedOfWhatGoesBack(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(context.Context, <-chan struct{}) error{
		"cut off":           func(ctx context.Context, _ <-chan struct{}) error { <-ctx.Done(); return ctx.Err() },
		"snoozed":           func(_ context.Context, stop <-chan struct{}) error { <-stop; return dispatcher.Snooze(time.Hour) },
		"to be tried again": func(_ context.Context, stop <-chan struct{}) error { <-stop; return errors.New("odd") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			enqueueProbes(t, db, 1, outbox.Options{})
			stop := make(chan struct{})
			config := quiet(nil)
			config.GracePeriod = 500 * time.Millisecond
			d := start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error { return end(ctx, stop) }), config)
			await(t, db, "it runs", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
			notified := listen(t, db)
			d.cancel()
			notified("nobody claims here any more")
			close(stop)
			notified("the job goes back")
		})
	}
}

// When this process no longer claims, it notifies the others of the jobs that it promotes.
func TestOthersAreNotifiedOfWhatIsPromotedDuringAStop(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{0}, outbox.Options{})
	enqueue(t, db, probe{1}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	ends := []chan struct{}{make(chan struct{}), make(chan struct{})}
	wake := make(chan struct{}, 1)
	d := start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		<-ends[job.Args.N]
		return nil
	}), quiet(wake))
	await(t, db, "both run", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'running'`)
	enqueue(t, db, probe{2}, outbox.Options{Key: outbox.KeyRules{Name: "k"}})
	wake <- struct{}{}
	await(t, db, "the second of the key is blocked", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'blocked'`)
	notified := listen(t, db)
	d.cancel()
	notified("nobody claims here any more") // the job without a key keeps it from ending
	close(ends[1])
	notified("a promoted job")
	await(t, db, "it is promoted", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'pending'`)
	close(ends[0])
	d.wait(t)
}

func TestStopGivesBackWhatHadNotStarted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 400
	enqueueProbes(t, db, jobs, outbox.Options{})
	notified := listen(t, db)

	// Short jobs are claimed far ahead; then comes a long one.
	blocked, finish := make(chan struct{}), make(chan struct{})
	var started atomic.Int64
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		if started.Add(1) == 50 {
			close(blocked)
			<-finish
		}
		return nil
	}), single(quiet(nil)))
	receive(t, blocked, "the long job")
	await(t, db, "jobs are fetched ahead", `SELECT count(*) > 1 FROM outbox.jobs WHERE status = 'running'`)
	d.cancel()
	await(t, db, "what had not started is given back", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'running'`)
	close(finish)
	d.wait(t)
	wantNothingRunning(t, db)
	done := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = 'succeeded' AND attempt = 1`)
	if int64(done) != started.Load() {
		t.Errorf("jobs in the history = %d, started %d", done, started.Load())
	}
	if n := ask[int](t, db, `
		SELECT count(*) FROM outbox.jobs
		WHERE status = 'pending' AND attempt = 0 AND epoch % 2 = 0 AND run_at = created_at AND last_error_code IS NULL`); n != jobs-done {
		t.Errorf("jobs given back as they were = %d, want %d", n, jobs-done)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != 0 {
		t.Errorf("recorded attempts = %d: interrupted is not failed", n)
	}
	notified("what had not started is given back")

	// The jobs are as good as new.
	start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error {
		if job.Attempt != 1 {
			t.Errorf("a job that was given back has attempt %d, want 1", job.Attempt)
		}
		return nil
	}), quiet(nil))
	awaitSucceeded(t, db, jobs)
}

func TestStopCutsWhatOutlivesTheGracePeriod(t *testing.T) {
	t.Parallel()
	for name, grace := range map[string]time.Duration{"a short one": 50 * time.Millisecond, "none": -1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			ids := enqueueProbes(t, db, 4, outbox.Options{MaxAttempts: 1})
			config := quiet(nil)
			config.GracePeriod = grace
			var begun atomic.Int64
			causes := make(chan error, 4)
			d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				begun.Add(1)
				<-ctx.Done()
				causes <- context.Cause(ctx)
				switch job.Args.N {
				case 0:
					return ctx.Err()
				case 1:
					return errBoom
				case 2:
					runtime.Goexit()
				}
				return nil // was just done
			}), config)
			// Claimed is not begun: what no handler has begun is given back, not cut.
			awaitThat(t, "all handlers run", func() bool { return begun.Load() == 4 })
			d.stop(t)
			for range 4 {
				if cause := receive(t, causes, "the cut"); !errors.Is(cause, dispatcher.ErrShutdown) {
					t.Errorf("cause = %v, want ErrShutdown", cause)
				}
			}
			wantNothingRunning(t, db)
			wantState(t, db, ids[0], "pending attempt=0 epoch=2 lost=0 error=")
			wantState(t, db, ids[1], "pending attempt=0 epoch=2 lost=0 error=")
			wantState(t, db, ids[2], "pending attempt=0 epoch=2 lost=0 error=")
			wantState(t, db, ids[3], "succeeded attempt=1 epoch=1 lost=0 error=")
			if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != 0 {
				t.Errorf("recorded attempts = %d: interrupted is not failed", n)
			}
		})
	}
}

// A stop at any moment of a busy queue leaves nothing running and loses nothing.
func TestStopInFullFlight(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 1500
	enqueueProbes(t, db, jobs, outbox.Options{})
	var runs atomic.Int64
	mux := handle(func(_ context.Context, job *outbox.Job[probe]) error {
		runs.Add(1)
		if job.Attempt != 1 {
			t.Errorf("attempt %d of a job that never failed", job.Attempt)
		}
		return nil
	})
	for round := range 5 {
		before := runs.Load()
		d := start(t, db, mux, single(quiet(nil)))
		awaitThat(t, "some jobs run", func() bool { return runs.Load() >= min(before+int64(40*round), jobs) })
		d.stop(t)
		wantNothingRunning(t, db)
		if done := ask[int64](t, db, `SELECT count(*) FROM outbox.history`); done != runs.Load() {
			t.Errorf("jobs in the history = %d, handled %d", done, runs.Load())
		}
	}
	start(t, db, mux, quiet(nil))
	awaitSucceeded(t, db, jobs)
	if n := runs.Load(); n != jobs {
		t.Errorf("handled %d times, want each of %d once", n, jobs)
	}
}

// The process starts before its database answers, and does not exit.
func TestRunWaitsForTheDatabase(t *testing.T) {
	t.Parallel()
	good := pgtest.New(t)
	enqueue(t, good, probe{}, outbox.Options{})
	exec(t, good, `ALTER SCHEMA outbox RENAME TO elsewhere`)
	d := start(t, good, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	awaitThat(t, "it says what is wrong", func() bool { return d.Ready() != nil && strings.Contains(d.Ready().Error(), "outbox.schema_files") })
	exec(t, good, `ALTER SCHEMA elsewhere RENAME TO outbox`)
	awaitSucceeded(t, good, 1)
	if err := d.Ready(); err != nil {
		t.Errorf("Ready() = %v", err)
	}
}

// Connections are cut in mid-flow, again and again: nothing is lost, and nothing but a lapse of leases is needed to
// continue.
func TestConnectionsAreCut(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ledger(t, db)
	const jobs = 1500
	enqueueProbes(t, db, jobs, outbox.Options{})
	config := quiet(nil)
	config.FallbackPollInterval = 20 * time.Millisecond
	config.LeaseTTL = 2 * time.Second
	config.Backoff = dispatcher.Waits(0)
	user, err := pgxpool.NewWithConfig(t.Context(), named(db, "victim"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(user.Close)
	d := start(t, user, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		return pgx.BeginFunc(ctx, user, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO effects VALUES ($1)`, job.ID); err != nil {
				return err
			}
			return job.Complete(ctx, tx)
		})
	}), config)
	cuts := 0
	for seen := 0; seen < jobs; {
		if seen < jobs*3/4 && cuts < 15 {
			cuts += ask[int](t, db, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'victim' AND datname = current_database()`)
		}
		before := seen
		awaitThat(t, "it goes on", func() bool {
			if _, err := expireLapsed(t.Context(), db); err != nil {
				t.Fatal(err)
			}
			seen = ask[int](t, db, `SELECT count(*) FROM outbox.history`)
			return seen >= min(jobs, before+100)
		})
	}
	d.stop(t)
	if cuts == 0 {
		t.Error("no connection was cut: the test proves nothing")
	}
	wantEffects(t, db, jobs)
	if n := ask[int](t, db, `SELECT count(DISTINCT job_id) FROM effects`); n != jobs {
		t.Errorf("jobs with an effect = %d, want %d", n, jobs)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs`); n != 0 {
		t.Errorf("jobs left open = %d", n)
	}
}

// named returns a configuration for the database of db whose sessions have an application name.
func named(db *pgxpool.Pool, application string) *pgxpool.Config {
	config := db.Config()
	config.ConnConfig.RuntimeParams["application_name"] = application
	return config
}
