package dispatcher_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func pause(t *testing.T, db outbox.DB) (paused time.Time) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('default', statement_timestamp())`)
	return time.Now()
}

// Handlers become slow when a hundred jobs and more have been claimed ahead of them.
// What has not started a second after a pause goes back, and starts after the queue is
// resumed.
func TestNothingStartsASecondAfterAPause(t *testing.T) {
	t.Parallel()
	ahead := 0
	for range 5 { // a slow machine may have started nearly all that it had claimed: that shows nothing
		if ahead = startsAfterAPause(t); ahead >= 50 {
			return
		}
	}
	t.Errorf("%d jobs were claimed ahead, want more to see anything", ahead)
}

// startsAfterAPause checks that jobs which were claimed ahead go back when their queue is
// paused, and returns how many there were.
func startsAfterAPause(t *testing.T) (ahead int) {
	t.Helper()
	db := pgtest.New(t)
	const jobs, quick = 2000, 300 // claims double: 16, 32, 64, 128, 256
	enqueueProbes(t, db, jobs, outbox.Options{})
	var started, latest atomic.Int64 // how many; when, in nanoseconds since begun
	var resumed atomic.Bool
	slow, begun := make(chan struct{}), time.Now()
	config := quiet(nil)
	config.Queues = map[string]dispatcher.QueueConfig{"default": {Concurrency: 2}}
	d := start(t, db, handle(func(context.Context, *outbox.Job[probe]) error {
		n := started.Add(1)
		if n == quick {
			close(slow)
		}
		if n >= quick && !resumed.Load() {
			latest.Store(int64(time.Since(begun)))
			time.Sleep(200 * time.Millisecond)
		}
		return nil
	}), config)
	receive(t, slow, "the handlers to become slow")
	paused := pause(t, db).Sub(begun)
	ahead = ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`)
	await(t, db, "what was claimed is done or goes back", `SELECT NOT EXISTS (SELECT FROM outbox.jobs WHERE status = 'running')`)
	if late := time.Duration(latest.Load()) - paused; late > time.Second {
		t.Errorf("a job started %s after the pause", late)
	}
	resumed.Store(true)
	exec(t, db, `UPDATE outbox.queues SET paused_at = NULL`)
	awaitSucceeded(t, db, jobs)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.history WHERE attempt <> 1`); n > 0 {
		t.Errorf("%d jobs spent an attempt on being given back", n)
	}
	d.stop(t)
	return ahead
}

// A batch that is gathered while its queue is paused goes back when it would start.
func TestABatchOfAPausedQueueGoesBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 3, outbox.Options{})
	var resumed atomic.Bool
	start(t, db, handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error {
		if !resumed.Load() {
			t.Error("the handler was called while the queue was paused")
		}
		return each(jobs, nil)
	}, dispatcher.BatchConfig{Max: 10, Wait: 2 * time.Second}), quiet(nil))
	await(t, db, "the jobs are gathered", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'running'`)
	pause(t, db)
	await(t, db, "they go back", `SELECT count(*) = 3 FROM outbox.jobs WHERE status = 'pending' AND attempt = 0`)
	resumed.Store(true)
	exec(t, db, `UPDATE outbox.queues SET paused_at = NULL`)
	awaitSucceeded(t, db, 3)
}

// A job that is cancelled while it waits for the rest of its batch is not started.
func TestAJobCancelledBeforeItStartsIsNotStarted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ids := enqueueProbes(t, db, 2, outbox.Options{})
	handled := make(chan int, 2)
	start(t, db, handleMany(func(_ context.Context, jobs []*outbox.Job[probe]) []error {
		for _, job := range jobs {
			handled <- job.Args.N
		}
		return each(jobs, nil)
	}, dispatcher.BatchConfig{Max: 10, Wait: 3 * time.Second}), quiet(nil))
	await(t, db, "the jobs are gathered", `SELECT count(*) = 2 FROM outbox.jobs WHERE status = 'running'`)
	cancelJob(t, db, ids[0], "running")
	await(t, db, "both are closed", `SELECT count(*) = 2 FROM outbox.history`)
	wantState(t, db, ids[0], "cancelled attempt=1 epoch=2 lost=0 error=")
	if n := <-handled; n != 1 || len(handled) > 0 {
		t.Errorf("job %d was handled, and %d more; want job 1 only", n, len(handled))
	}
}
