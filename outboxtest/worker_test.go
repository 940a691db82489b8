package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

func TestAJobIsWorkedInTheTestsTransaction(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	t.Run("the test", func(t *testing.T) {
		db := stored(t, pool)
		mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
			return job.Tx(ctx, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, job.Args.Order); err != nil {
					return err
				}
				return job.Complete(ctx, tx)
			})
		})
		id := enqueue(t, db, receipt{Order: 7}, outbox.Options{})
		got := outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Work()
		if got.ID != id || got.Status != outbox.Succeeded || got.Attempt != 1 || got.Err != nil {
			t.Errorf("got %+v", got)
		}
		if n := ask[int](t, db, `SELECT order_id FROM sent`); n != 7 {
			t.Errorf("sent %d", n)
		}
		if tenant := ask[*string](t, db, `SELECT nullif(current_setting('app.tenant_id', true), '')`); tenant != nil {
			t.Errorf("the tenant is still %s", *tenant)
		}
	})
	if n := ask[int](t, pool, `SELECT count(*) FROM outbox.history`); n != 0 {
		t.Errorf("%d jobs are left when the test is over", n)
	}
}

// The engine's statements share the transaction with the code under test, which must wait for a lock as in production.
func TestTheEngineLeavesTheTestsSettings(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	settings := func() string {
		return ask[string](t, db, `SELECT concat_ws(' ', current_setting('app.tenant_id'), current_setting('lock_timeout'))`)
	}
	exec(t, db, `SELECT set_config('app.tenant_id', 'o''hara', true), set_config('lock_timeout', '7s', true)`)
	before := settings()
	enqueue(t, db, receipt{}, outbox.Options{})
	if got := statuses(outboxtest.NewWorker(t, db, handle(done), outboxtest.Config{}).Drain()); got != "succeeded" {
		t.Errorf("got %s", got)
	}
	if after := settings(); after != before {
		t.Errorf("the settings are %s after a success, %s before", after, before)
	}
}

func TestTheEngineDecides(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		opts outbox.Options
		want string // by one Drain
	}{
		"a failure is retried":             {errors.New("down"), outbox.Options{}, "retrying"},
		"the last attempt leaves it dead":  {errors.New("down"), outbox.Options{MaxAttempts: 1}, "dead"},
		"without a wait it is tried again": {dispatcher.RetryAfter(0, errors.New("down")), outbox.Options{MaxAttempts: 3}, "retrying retrying dead"},
		"discarded is failed":              {dispatcher.Discard(errors.New("never")), outbox.Options{}, "failed"},
		"a snooze is no attempt":           {dispatcher.Snooze(time.Hour), outbox.Options{MaxAttempts: 1}, "pending"},
		"an outage is no attempt":          {dispatcher.Unavailable(errors.New("away"), time.Minute), outbox.Options{MaxAttempts: 1}, "retrying"},
		"an error code fails it for good":  {dispatcher.WithCode("no_such_order", errors.New("404")), outbox.Options{}, "failed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := outboxtest.New(t, pgtest.New(t))
			mux := handle(func(context.Context, *outbox.Job[receipt]) error { return c.err }, dispatcher.KindConfig{FailOn: []string{"no_such_order"}})
			enqueue(t, db, receipt{}, c.opts)
			outcomes := outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Drain()
			if got := statuses(outcomes); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
			if !errors.Is(outcomes[0].Err, c.err) {
				t.Errorf("the error is %v", outcomes[0].Err)
			}
		})
	}
}

func TestDrainGoesOnWithWhatFollows(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	var got []string
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, func(_ context.Context, job *outbox.Job[sum]) (int, error) {
		got = append(got, "sum")
		_, err := job.Then(receipt{Order: 8}, outbox.Options{})
		return job.Args.A + job.Args.B, err
	})
	dispatcher.OnResult(mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[sum]], result int) error {
		got = append(got, fmt.Sprintf("result %d", result))
		return nil
	})
	dispatcher.Handle(mux, func(_ context.Context, job *outbox.Job[receipt]) error {
		got = append(got, fmt.Sprintf("receipt %d", job.Args.Order))
		return dispatcher.Discard(errors.New("no address"))
	})
	dispatcher.OnDeath(mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[receipt]]) error {
		got = append(got, fmt.Sprintf("death of %d", job.Args.Args.Order))
		return nil
	})
	enqueue(t, db, sum{A: 1, B: 2}, outbox.Options{})
	outcomes := outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Drain()
	if string(outcomes[0].Result) != "3" {
		t.Errorf("result %q", outcomes[0].Result)
	}
	if diff := cmp.Diff([]string{"sum", "receipt 8", "result 3", "death of 8"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

type sum struct {
	outbox.Returns[int]
	A, B int
}

func (sum) Kind() string { return "sum" }

func TestKeysAndOrderHold(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	var got []int
	mux := handle(func(_ context.Context, job *outbox.Job[receipt]) error {
		got = append(got, job.Args.Order)
		if job.Args.Order == 1 && job.Attempt == 1 {
			return dispatcher.RetryAfter(time.Hour, errors.New("down"))
		}
		return nil
	})
	ordered := outbox.Options{Key: outbox.KeyRules{Name: "customer 1", Ordered: true}}
	for n := range 3 {
		enqueue(t, db, receipt{Order: n}, ordered)
	}
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{})
	if got := statuses(w.Drain()); got != "succeeded retrying" {
		t.Errorf("got %s: the third must wait for the second", got)
	}
	if got := statuses(w.Advance(time.Hour)); got != "succeeded succeeded" {
		t.Errorf("an hour later: got %s", got)
	}
	if diff := cmp.Diff([]int{0, 1, 1, 2}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBatchesStepsAndReports(t *testing.T) {
	t.Parallel()
	db := stored(t, pgtest.New(t))
	mux := new(dispatcher.Mux)
	dispatcher.HandleMany(mux, func(_ context.Context, jobs []*outbox.Job[receipt]) []error {
		outcomes := make([]error, len(jobs))
		outcomes[1] = errors.New("down")
		return outcomes
	}, dispatcher.BatchConfig{})
	calls := 0
	dispatcher.Handle(mux, func(ctx context.Context, job *outbox.Job[stepped]) error {
		n, err := dispatcher.Step(ctx, job.Claimed, "count", func(context.Context) (int, error) { calls++; return calls, nil })
		if err != nil {
			return err
		}
		if _, err := dispatcher.StepTx(ctx, job.Claimed, db, "write", func(ctx context.Context, tx pgx.Tx) (int, error) {
			_, err := tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES ($1)`, n)
			return n, err
		}); err != nil {
			return err
		}
		if err := errors.Join(job.Progress(ctx, 1, 2, "half"), job.Log(ctx, slog.LevelInfo, "half of it is done"), outbox.SaveCheckpoint(ctx, job.Claimed, n)); err != nil {
			return err
		}
		if job.Attempt == 1 {
			return dispatcher.RetryAfter(time.Minute, errors.New("crash"))
		}
		at, found, err := outbox.LoadCheckpoint[int](ctx, job.Claimed)
		if err != nil || !found || at != 1 {
			return fmt.Errorf("checkpoint %d %t: %w", at, found, err)
		}
		return nil
	})
	for n := range 3 {
		enqueue(t, db, receipt{Order: n}, outbox.Options{})
	}
	enqueue(t, db, stepped{}, outbox.Options{})
	w := outboxtest.NewWorker(t, db, mux, outboxtest.Config{Backoff: dispatcher.Waits(time.Minute)})
	if got, want := statuses(w.Drain()), "succeeded retrying succeeded retrying"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, o := range w.Advance(2 * time.Minute) {
		if o.Kind == "stepped" && o.Status != outbox.Succeeded {
			t.Error(o)
		}
	}
	if n := ask[int](t, db, `SELECT count(*) FROM sent`); n != 1 || calls != 1 {
		t.Errorf("the steps ran %d and %d times", calls, n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.job_logs`); n != 2 {
		t.Errorf("%d lines of log", n)
	}
}

type stepped struct{}

func (stepped) Kind() string { return "stepped" }

func TestWhatIsReportedOutlivesARollback(t *testing.T) {
	t.Parallel()
	db := stored(t, pgtest.New(t))
	mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES (1)`); err != nil {
				return err
			}
			if err := outbox.SaveCheckpoint(ctx, job.Claimed, 5); err != nil {
				return err
			}
			return errors.New("down")
		})
	})
	enqueue(t, db, receipt{}, outbox.Options{})
	outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Drain()
	if n := ask[int](t, db, `SELECT count(*) FROM sent`); n != 0 {
		t.Errorf("%d rows outlive the rollback", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.progress WHERE checkpoint IS NOT NULL`); n != 1 {
		t.Errorf("%d checkpoints, want that of the connection that the engine has in production", n)
	}
}

func TestAFailedStatementIsUndoneByItself(t *testing.T) {
	t.Parallel()
	db := stored(t, pgtest.New(t))
	if _, err := db.Exec(t.Context(), `INSERT INTO nowhere VALUES (1)`); err == nil {
		t.Error("no error")
	}
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), `INSERT INTO sent (order_id) VALUES (1)`); err != nil {
			t.Error(err)
		}
		_, _ = tx.Exec(t.Context(), `INSERT INTO nowhere VALUES (1)`)
		return nil // and commits what is aborted
	})
	if !errors.Is(err, pgx.ErrTxCommitRollback) {
		t.Errorf("the commit said %v", err)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM sent`); n != 0 {
		t.Errorf("%d rows", n)
	}
}

func TestAStatementEndsWithItsContext(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `SELECT pg_sleep(60)`)
			return err
		})
	}, dispatcher.KindConfig{Timeout: 50 * time.Millisecond})
	enqueue(t, db, receipt{}, outbox.Options{MaxAttempts: 1})
	got := outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Work()
	if got.Status != outbox.Dead || !errors.Is(got.Err, context.Canceled) {
		t.Errorf("got %s", got)
	}
}

// What is done beside an open transaction would wait for its locks in production, or not see its changes. In a test's
// one connection it would do neither.
func TestASecondConnectionIsRefused(t *testing.T) {
	t.Parallel()
	db := stored(t, pgtest.New(t))
	for _, sql := range []string{
		`INSERT INTO sent (order_id) VALUES (1)`,
		`SELECT count(*) FROM sent`,
		`SELECT id FROM sent FOR UPDATE`,
		`SELECT pg_advisory_xact_lock(1)`,
		`WITH one AS (SELECT 1) SELECT * FROM one`,
	} {
		mux := handle(func(ctx context.Context, job *outbox.Job[receipt]) error {
			return job.Tx(ctx, func(tx pgx.Tx) error {
				if _, err := tx.Exec(ctx, `INSERT INTO sent (order_id) VALUES (2)`); err != nil {
					return err
				}
				_, err := db.Exec(ctx, sql)
				return err
			})
		})
		enqueue(t, db, receipt{}, outbox.Options{MaxAttempts: 1})
		got := outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Work()
		if got.Err == nil || !strings.Contains(got.Err.Error(), "needs a second connection") {
			t.Errorf("%s: got %s", sql, got)
		}
	}
}

func TestFailNowInAHandlerEndsTheTest(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{}, outbox.Options{})
	went := false
	said := fails(t, func(t testing.TB) {
		mux := handle(func(context.Context, *outbox.Job[receipt]) error {
			t.Fatalf("unexpected order")
			return nil
		})
		outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Work()
		went = true
	})
	if went || !strings.Contains(said, "unexpected order") {
		t.Errorf("went on: %t; said %q", went, said)
	}
}

func TestWorkFailsTheTestIfNothingIsDue(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{Order: 3}, outbox.Options{Delay: time.Hour})
	said := fails(t, func(t testing.TB) { outboxtest.NewWorker(t, db, handle(done), outboxtest.Config{}).Work() })
	if !strings.Contains(said, `receipt.send in queue default, pending, due`) || !strings.Contains(said, `"Order": 3`) {
		t.Errorf("said %s", said)
	}
}

func TestAPausedQueueIsNotWorked(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, receipt{}, outbox.Options{Queue: "mail"})
	exec(t, db, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('mail', now())`)
	w := outboxtest.NewWorker(t, db, handle(done), outboxtest.Config{})
	if got := w.Drain(); len(got) > 0 {
		t.Errorf("got %s", statuses(got))
	}
	exec(t, db, `UPDATE outbox.queues SET paused_at = NULL, max_running = 1`)
	if got := statuses(w.Drain()); got != "succeeded" {
		t.Errorf("got %s", got)
	}
}

// What a COMMIT does to jobs happens before the next one is worked: a job that is cancelled makes way for the one
// behind.
func TestACancelledHeadMakesWay(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	ordered := outbox.KeyRules{Name: "customer 1", Ordered: true}
	first := enqueue(t, db, receipt{Order: 1}, outbox.Options{Key: ordered, Delay: time.Hour})
	enqueue(t, db, receipt{Order: 2}, outbox.Options{Key: ordered})
	w := outboxtest.NewWorker(t, db, handle(done), outboxtest.Config{})
	if got := statuses(w.Drain()); got != "" {
		t.Errorf("got %s before the first is due", got)
	}
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), `SELECT outbox.cancel($1)`, first)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if got := statuses(w.Drain()); got != "succeeded" {
		t.Errorf("got %q", got)
	}
}

func TestJobsOfAFormerNameAreWorked(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pgtest.New(t))
	enqueue(t, db, outbox.Raw{KindName: "mail.send", Payload: []byte(`{}`)}, outbox.Options{})
	mux := handle(done)
	mux.Alias("receipt.send", "mail.send")
	if got := outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Work(); got.Kind != "mail.send" || got.Status != outbox.Succeeded {
		t.Errorf("got %s", got)
	}
}
