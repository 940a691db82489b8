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
