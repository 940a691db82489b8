package dispatcher_test

import (
	"context"
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A tenant's jobs that never end take all slots but the reserved ones: a job
// that comes then starts at once, again and again, also after a handler that
// ended the kept slot's goroutine. Root may be either of them.
func TestAWorkerIsReservedForOtherTenants(t *testing.T) {
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
				Queues:       map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}},
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
func TestWhatGoesBackDoesNotTakeTheReservedWorker(t *testing.T) {
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
		Queues:       map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}},
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

// reservedFree has a tenant's jobs take all slots but the kept one.
func reservedFree(t *testing.T, db *pgxpool.Pool) (wake func(), others *atomic.Int64) {
	t.Helper()
	enqueueProbes(t, db, 100, of(0))
	wake, _, others = allButReserved(t, db)
	return wake, others
}

// allButReserved starts a dispatcher whose jobs take all slots but the kept one, and which
// nobody wakes but by what it returns. Jobs from 1000 on end, but take so long that none is
// fetched ahead.
func allButReserved(t *testing.T, db *pgxpool.Pool) (wake func(), busy, others *atomic.Int64) {
	t.Helper()
	var never, started atomic.Int64
	woken := make(chan struct{})
	d := start(t, db, handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		if job.Args.N >= 1000 {
			started.Add(1)
			time.Sleep(700 * time.Millisecond)
			return nil
		}
		never.Add(1)
		<-ctx.Done()
		return nil
	}), dispatcher.Config{
		Queues:       map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}},
		PollInterval: time.Hour, DeafPollInterval: time.Hour, Wake: woken, GracePeriod: -1,
	})
	awaitThat(t, "all slots but one are taken", func() bool { return never.Load() == 15 })
	t.Cleanup(func() { d.stop(t) })
	return func() { woken <- struct{}{} }, &never, &started
}

// All jobs with a key are of one tenant, who has many, so nobody shares them. The kept slot
// is for the other tenant, whose jobs have none.
func TestAReservedWorkerIsNotForOneWithManyKeys(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	requests := []outbox.Request{{Args: probe{1000}, Options: of(1)}} // who shares the queue from now on
	for n := range 100 {
		requests = append(requests, outbox.Request{Args: probe{n}, Options: outbox.Options{Key: outbox.KeyRules{Name: fmt.Sprint(n)}}})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	wake, busy, others := allButReserved(t, db)
	for n := range 3 {
		enqueue(t, db, probe{1001}, of(1))
		wake()
		awaitThat(t, "it starts", func() bool { return others.Load() == int64(n+2) })
	}
	for range 20 {
		wake()
	}
	time.Sleep(time.Second)
	if n := busy.Load(); n != 15 {
		t.Errorf("jobs of the busy tenant that have started = %d, want 15: the last slot is not theirs", n)
	}
}

// Two tenants' jobs come with one wake-up, for one kept slot: the second one starts when
// the first one ends.
func TestTheReservedWorkerServesOneAfterTheOther(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	wake, others := reservedFree(t, db)
	requests := []outbox.Request{
		{Args: probe{1000}, Options: of(1)}, {Args: probe{1001}, Options: of(2)}, {Args: probe{1002}, Options: of(2)},
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	wake()
	awaitThat(t, "all three start, one after the other", func() bool { return others.Load() == 3 })
}

// The first job of its sort that the queue has seen is found while only the kept slot is free.
func TestAReservedWorkerIsForWhatIsNew(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]outbox.Options{
		"a priority": {Priority: 5}, "a key": {Key: outbox.KeyRules{Name: "k"}}, "another's priority": {Tenant: tenantN(1), Priority: -3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			wake, others := reservedFree(t, db)
			enqueue(t, db, probe{1000}, options)
			wake()
			awaitThat(t, "it starts", func() bool { return others.Load() == 1 })
		})
	}
}

// Nobody wakes the queue, and no poll comes, when the time is over for which slots are kept
// behind the last job of another tenant.
func TestReservedWorkersAreFreedInTime(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueueProbes(t, db, 20, outbox.Options{})
	enqueue(t, db, probe{1000}, of(1))
	_, busy, _ := allButReserved(t, db)
	awaitThat(t, "all slots are taken", func() bool { return busy.Load() == 16 })
}

// As long as all jobs are root's, every slot is theirs.
func TestNoWorkerIsReservedWhileRootIsAlone(t *testing.T) {
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
	}), dispatcher.Config{Queues: map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}}})
	awaitThat(t, "all run at once", func() bool { return running.Load() == 16 })
	close(release)
	awaitSucceeded(t, db, 16)
}

// When the last job of another tenant is gone for some seconds, root has its slots back.
func TestReservedWorkersAreFreed(t *testing.T) {
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
		Queues:       map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 16}},
		PollInterval: time.Second, DeafPollInterval: time.Second, Wake: wake,
	})
	awaitSucceeded(t, db, 1)
	enqueueProbes(t, db, 16, outbox.Options{})
	wake <- struct{}{}
	awaitThat(t, "all run at once", func() bool { return running.Load() == 16 })
	close(release)
	awaitSucceeded(t, db, 17)
}
