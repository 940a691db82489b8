// With this, recover returns nil for panic(nil): programs that are older than Go 1.21
// may ask for it.
//
//go:debug panicnil=1
package dispatcher_test

import (
	"context"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

type nilError struct{ text string }

func (e *nilError) Error() string { return e.text } // panics for a nil *nilError

type panicsWithNil struct{}

func (panicsWithNil) Error() string { panic(nil) }

// A handler's bug costs its own job an attempt, never the process and the other
// jobs in it, and never a worker.
func TestAHandlersBugCostsItsOwnJobOnly(t *testing.T) {
	t.Parallel()
	bugs := map[string]struct {
		handler handler
		config  dispatcher.KindConfig
		code    string
	}{
		"an error that is a nil pointer": {
			handler: func(context.Context, *outbox.Job[probe]) error {
				var e *nilError
				return e
			}, code: "panic",
		},
		"a back-off policy that panics": {
			handler: func(context.Context, *outbox.Job[probe]) error { return context.Canceled },
			config:  dispatcher.KindConfig{Backoff: func(*outbox.Claimed, error) time.Duration { panic("policy") }},
			code:    "panic",
		},
		"panic(nil)": {
			handler: func(context.Context, *outbox.Job[probe]) error { panic(nil) },
			code:    "panic",
		},
		"an error that panics with nil": {
			handler: func(context.Context, *outbox.Job[probe]) error { return panicsWithNil{} },
			code:    "panic",
		},
		"an exit of its goroutine": {
			handler: func(context.Context, *outbox.Job[probe]) error {
				runtime.Goexit()
				return nil
			}, code: "goexit",
		},
	}
	for name, bug := range bugs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			mux := handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				if job.Args.N < 5 {
					return bug.handler(ctx, job)
				}
				return nil
			}, bug.config)
			config := quiet(nil)
			config.Queues = map[string]dispatcher.QueueConfig{"default": {Concurrency: 2}} // fewer workers than bugs
			enqueueProbes(t, db, 20, outbox.Options{MaxAttempts: 1})
			start(t, db, mux, config)
			await(t, db, "the others succeed", `SELECT count(*) = 15 FROM outbox.history`)
			await(t, db, "those are dead", `SELECT count(*) = 5 FROM outbox.jobs WHERE status = 'dead'`)
			if code := ask[string](t, db, `SELECT string_agg(DISTINCT last_error_code, ',') FROM outbox.jobs`); code != bug.code {
				t.Errorf("error code = %q, want %q", code, bug.code)
			}
		})
	}
}

// While the handler's own transaction holds the row, nobody can take the job:
// cutting the handler off would run it again and again, without an attempt ever
// being spent.
func TestATransactionThatGuardsTheJobMayOutliveTheLease(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	runs := make(chan struct{}, 10)
	mux := handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		runs <- struct{}{}
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if err := job.Guard(ctx, tx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Second): // two leases
		}
		if err := job.Complete(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
	config := quiet(nil)
	config.LeaseTTL = 5 * time.Second
	id := enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, mux, config)
	awaitSucceeded(t, db, 1)
	if len(runs) != 1 {
		t.Errorf("the handler ran %d times, want once", len(runs))
	}
	if got := ask[int](t, db, `SELECT attempt FROM outbox.history WHERE id = $1`, id); got != 1 {
		t.Errorf("attempt = %d, want 1", got)
	}
}

// A result that is too large would be refused with every batch that it is in.
func TestAResultThatIsTooLargeFailsForGood(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, func(context.Context, *outbox.Job[returning[string]]) (string, error) {
		return strings.Repeat("x", engine.MaxPayloadBytes), nil
	})
	id := enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, mux, quiet(nil))
	await(t, db, "the attempt is settled", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'failed'`)
	wantState(t, db, id, "failed attempt=1 epoch=2 lost=0 error=result_too_large")
}

// A handler that goes on after its time is over is reported, once, while it goes on.
func TestAHandlerThatOutlivesItsTimeIsReported(t *testing.T) {
	t.Parallel()
	for name, batch := range map[string]bool{"one job": false, "a batch": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			release := make(chan struct{})
			kind := dispatcher.KindConfig{Timeout: 100 * time.Millisecond}
			linger := func(job *outbox.Job[probe]) {
				if job.Args.N == 0 {
					<-release
				}
			}
			mux := handle(func(_ context.Context, job *outbox.Job[probe]) error { linger(job); return nil }, kind)
			if batch {
				mux = handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error {
					linger(jobs[0])
					return make([]error, len(jobs))
				}, dispatcher.BatchConfig{Max: 1}, kind)
			}
			id := enqueue(t, db, probe{}, outbox.Options{})
			prompt := enqueue(t, db, probe{1}, outbox.Options{})
			d := start(t, db, mux, quiet(nil))
			awaitThat(t, "the overrun is reported", func() bool { return d.metric(t, "outbox_dispatcher_overruns_total") == 1 })
			if text := d.log.complaints(); strings.Count(text, "msg=handler_overrun") != 1 || !strings.Contains(text, id.String()) || strings.Contains(text, prompt.String()) {
				t.Errorf("logged %s, want one line about the job %s", text, id)
			}
			close(release)
			awaitSucceeded(t, db, 2)
		})
	}
}
