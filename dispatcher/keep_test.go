package dispatcher_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A tenant's jobs that never end take all slots but the kept ones: whoever comes
// then starts at once, again and again, also after a handler that ended the kept
// slot's goroutine. Root may be either of them.
func TestASlotIsKeptForOtherTenants(t *testing.T) {
	t.Parallel()
	for name, whose := range map[string]struct{ busy, sparse outbox.Options }{
		"beside another's": {of(0), of(1)}, "root's": {of(0), outbox.Options{}}, "beside root's": {outbox.Options{}, of(1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			enqueueProbes(t, db, 100, whose.busy)
			if whose.busy.Tenant.IsZero() { // while only root has jobs there is nothing to share
				enqueue(t, db, probe{1000}, whose.sparse)
			}
			wake, release := make(chan struct{}, 1), make(chan struct{})
			var busy, sparse atomic.Int64
			d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
				if job.Tenant == whose.sparse.Tenant || job.Args.N >= 1000 {
					if sparse.Add(1) == 2 {
						runtime.Goexit()
					}
					return nil
				}
				busy.Add(1)
				select {
				case <-release:
				case <-ctx.Done():
				}
				return nil
			}), dispatcher.Config{
				Queues:       map[string]dispatcher.QueueConfig{outbox.DefaultQueue: {Concurrency: 16}},
				PollInterval: time.Hour, DeafPollInterval: time.Hour, Wake: wake,
			})
			awaitThat(t, "all slots but one are taken", func() bool { return busy.Load() == 15 })
			for n := range 5 {
				before := sparse.Load()
				enqueue(t, db, probe{1001 + n}, whose.sparse)
				wake <- struct{}{}
				awaitThat(t, "it starts beside jobs that never end", func() bool { return sparse.Load() > before })
			}
			if n := busy.Load(); n != 15 {
				t.Errorf("jobs of the busy tenant that have started = %d, want 15: the last slot is not theirs", n)
			}
			close(release)
			await(t, db, "the others are done", `SELECT count(*) FILTER (WHERE status = 'succeeded') >= 100 FROM outbox.history`)
			d.stop(t)
		})
	}
}

// Short jobs have had many of a tenant's long ones fetched ahead, by a claim that left
// none of them. When they have waited for too long they go back, and the kept slot is
// not for them.
func TestWhatGoesBackDoesNotTakeTheKeptSlot(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wake, release := make(chan struct{}, 1), make(chan struct{})
	var busy, sparse atomic.Int64
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Tenant == tenantN(1) {
			sparse.Add(1)
			return nil
		}
		busy.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}), dispatcher.Config{
		Queues:       map[string]dispatcher.QueueConfig{outbox.DefaultQueue: {Concurrency: 16}},
		PollInterval: time.Hour, DeafPollInterval: time.Hour, Wake: wake,
	})
	another := func() {
		before := sparse.Load()
		enqueue(t, db, probe{}, of(1))
		wake <- struct{}{}
		awaitThat(t, "it starts beside jobs that never end", func() bool { return sparse.Load() > before })
	}
	another()
	enqueueProbes(t, db, 100, of(0))
	wake <- struct{}{}
	awaitThat(t, "all slots but one are taken", func() bool { return busy.Load() == 15 })
	fetched := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`)
	if fetched <= 16 {
		t.Error("no job was fetched ahead: the test shows nothing")
	}
	await(t, db, "what was fetched ahead goes back", `SELECT count(*) <= 16 FROM outbox.jobs WHERE status = 'running'`)
	for range 5 {
		another()
	}
	if n := busy.Load(); n != 15 {
		t.Errorf("jobs of the busy tenant that have started = %d, want 15: the last slot is not theirs", n)
	}
	close(release)
	d.stop(t)
}

// As long as all jobs are root's, every slot is theirs.
func TestNoSlotIsKeptForNobody(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 16, outbox.Options{})
	var running atomic.Int64
	release := make(chan struct{})
	start(t, db, handle(func(ctx context.Context, _ *outbox.Job[probe]) error {
		running.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}), dispatcher.Config{Queues: map[string]dispatcher.QueueConfig{outbox.DefaultQueue: {Concurrency: 16}}})
	awaitThat(t, "all run at once", func() bool { return running.Load() == 16 })
	close(release)
	awaitSucceeded(t, db, 16)
}

// When the last job of another tenant is gone for some seconds, root has its slots back.
func TestKeptSlotsAreGivenBack(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{1000}, of(1))
	wake, release := make(chan struct{}, 1), make(chan struct{})
	var running atomic.Int64
	start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Args.N >= 1000 {
			return nil
		}
		running.Add(1)
		select {
		case <-release:
		case <-ctx.Done():
		}
		return nil
	}), dispatcher.Config{
		Queues:       map[string]dispatcher.QueueConfig{outbox.DefaultQueue: {Concurrency: 16}},
		PollInterval: time.Second, DeafPollInterval: time.Second, Wake: wake,
	})
	awaitSucceeded(t, db, 1)
	enqueueProbes(t, db, 16, outbox.Options{})
	wake <- struct{}{}
	awaitThat(t, "all run at once", func() bool { return running.Load() == 16 })
	close(release)
	awaitSucceeded(t, db, 17)
}
