package dispatcher

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// besideEndless drives a queue of 16 workers. The jobs of the busy tenant do not end before the test does, and those of
// other tenants take the given time; both are counted when they start.
func besideEndless(t *testing.T, busy outbox.ID, take time.Duration, config Config, drive func(r endless)) {
	t.Helper()
	var running, others atomic.Int64
	var release chan struct{} // of the bubble
	inMemory(t, 16, func(_ context.Context, job *outbox.Job[tiny]) error {
		if job.Tenant == busy {
			running.Add(1)
			<-release
			return nil
		}
		if others.Add(1) == 2 && take == 0 {
			runtime.Goexit() // ends the worker's goroutine, so that another must replace it
		}
		time.Sleep(take)
		return nil
	}, config, func(r rig) {
		release = make(chan struct{})
		drive(endless{r, t, &running, &others})
		close(release)
	})
}

// endless is a queue with jobs that do not end: it counts how many of those and how many others have started.
type endless struct {
	rig
	t               *testing.T
	running, others *atomic.Int64
}

// fill lets the busy tenant's jobs take all workers except the reserved one, or all.
func (r endless) fill(want int64) {
	r.t.Helper()
	r.capacity.Poke()
	r.sleep(time.Second)
	if n := r.running.Load(); n != want {
		r.t.Errorf("%d jobs of the busy tenant have started, want %d", n, want)
	}
}

// another stores a job, and expects that it starts at once.
func (r endless) another(tenant outbox.ID) {
	r.t.Helper()
	before := r.others.Load()
	r.add(tenant, 1, 0)
	r.wantStarted(before + 1)
}

// wantStarted expects this many jobs of other tenants to have started within a moment.
func (r endless) wantStarted(n int64) {
	r.t.Helper()
	r.capacity.Poke()
	r.sleep(100 * time.Millisecond)
	if got := r.others.Load(); got < n {
		r.t.Errorf("in vain: a job starts beside jobs that never end; %d of others have started, want %d", got, n)
	}
}

// still expects that the busy tenant has got no further worker.
func (r endless) still(want int64) {
	r.t.Helper()
	if n := r.running.Load(); n != want {
		r.t.Errorf("jobs of the busy tenant that have started = %d, want %d: the last worker is not theirs", n, want)
	}
}

// A tenant's jobs that never end take all workers except the reserved one: a job that comes then starts at once, again
// and again, also after a handler that ended the reserved worker's goroutine. Root may be either tenant.
func TestAWorkerIsReservedForOtherTenants(t *testing.T) {
	for name, whose := range map[string]struct{ busy, sparse outbox.ID }{
		"beside another's": {numbered(1), numbered(2)}, "root's": {numbered(1), numbered(0)}, "beside root's": {numbered(0), numbered(2)},
	} {
		t.Run(name, func(t *testing.T) {
			besideEndless(t, whose.busy, 0, Config{}, func(r endless) {
				if whose.busy == outbox.RootTenant { // while only root has jobs there is nothing to share
					r.another(whose.sparse)
				}
				r.add(whose.busy, 100, 0)
				r.fill(15)
				for range 5 {
					r.another(whose.sparse)
				}
				r.still(15)
			})
		})
	}
}

// After short jobs, many of a tenant's long ones were claimed ahead, by a claim that left none of them. When they have
// waited for too long they go back, and the reserved worker does not take them.
func TestWhatGoesBackDoesNotTakeTheReservedWorker(t *testing.T) {
	busy, sparse := numbered(1), numbered(2)
	besideEndless(t, busy, time.Microsecond, Config{}, func(r endless) {
		r.another(sparse)
		r.add(busy, 100, 0)
		r.capacity.Poke()
		r.sleep(time.Millisecond)
		if n := r.capacity.inHand.Load(); n <= 16 {
			t.Error("no job was fetched ahead: the test shows nothing")
		}
		r.still(15)
		r.sleep(2 * staleAfter)
		if n := r.capacity.inHand.Load(); n > 16 {
			t.Errorf("%d jobs are in hand, want that what was fetched ahead goes back", n)
		}
		for range 5 {
			r.another(sparse)
		}
		r.still(15)
	})
}

// All jobs with a key belong to one tenant with many, so no tenant shares them. The reserved worker is for the other
// tenant, whose jobs have none.
func TestAReservedWorkerIsNotForOneWithManyKeys(t *testing.T) {
	busy, sparse := outbox.RootTenant, numbered(1)
	besideEndless(t, busy, 50*time.Millisecond, Config{}, func(r endless) {
		r.another(sparse) // who shares the queue from now on
		r.addKeyed(busy, 100, 0, "k")
		r.fill(15)
		for range 3 {
			r.another(sparse)
		}
		for range 20 {
			r.capacity.Poke()
			r.sleep(time.Millisecond)
		}
		r.sleep(time.Second)
		r.still(15)
	})
}

// Jobs of two tenants come with one wake-up, for one reserved worker: the second starts when the first ends.
func TestTheReservedWorkerServesOneAfterTheOther(t *testing.T) {
	busy := numbered(1)
	besideEndless(t, busy, 700*time.Millisecond, Config{}, func(r endless) {
		r.add(busy, 100, 0)
		r.fill(15)
		r.add(numbered(2), 1, 0)
		r.add(numbered(3), 2, 0)
		r.capacity.Poke()
		for n := range int64(3) {
			r.sleep(700 * time.Millisecond)
			if got := r.others.Load(); got < n+1 {
				t.Errorf("%d jobs of others have started, want %d, one after the other", got, n+1)
			}
		}
	})
}

// The first job of its sort that the queue has seen is found while only the reserved worker is free.
func TestAReservedWorkerIsForWhatIsNew(t *testing.T) {
	for name, sort := range map[string]struct {
		tenant   outbox.ID
		priority int
		key      string
	}{
		"a priority": {outbox.RootTenant, 5, ""}, "a key": {outbox.RootTenant, 0, "k"}, "another's priority": {numbered(2), -3, ""},
	} {
		t.Run(name, func(t *testing.T) {
			busy := numbered(1)
			besideEndless(t, busy, 700*time.Millisecond, Config{}, func(r endless) {
				r.add(busy, 100, 0)
				r.fill(15)
				r.addAt(sort.priority, sort.tenant, sort.key)
				r.wantStarted(1)
			})
		})
	}
}

// A claim gets all jobs of a tenant, more than a few: none of them is for the reserved worker, even if that worker has
// waited longer than the others.
func TestAReservedWorkerIsNotForPartOfAClaim(t *testing.T) {
	besideEndless(t, outbox.RootTenant, 50*time.Millisecond, Config{}, func(r endless) {
		r.another(numbered(1))
		r.add(numbered(2), 60, 0)
		r.capacity.Poke()
		r.sleep(time.Second)
		r.add(outbox.RootTenant, 16, 0)
		r.fill(15)
	})
}

// Nothing wakes the queue, and no poll comes, when the time is over for which workers stay reserved after the last job
// of another tenant.
func TestReservedWorkersAreFreedInTime(t *testing.T) {
	besideEndless(t, outbox.RootTenant, 700*time.Millisecond, Config{}, func(r endless) {
		r.another(numbered(1))
		r.add(outbox.RootTenant, 20, 0)
		r.fill(15)
		r.sleep(30 * time.Second)
		if n := r.running.Load(); n != 16 {
			t.Errorf("in vain: all slots are taken; %d are, want 16", n)
		}
	})
}

// As long as all jobs are root's, root gets every worker.
func TestNoWorkerIsReservedWhileRootIsAlone(t *testing.T) {
	besideEndless(t, outbox.RootTenant, 0, Config{}, func(r endless) {
		r.add(outbox.RootTenant, 16, 0)
		r.fill(16)
	})
}

// Some seconds after the last job of another tenant is gone, root gets all workers again.
func TestReservedWorkersAreFreed(t *testing.T) {
	polls := Config{PollInterval: time.Second, FallbackPollInterval: time.Second}
	besideEndless(t, outbox.RootTenant, 50*time.Millisecond, polls, func(r endless) {
		r.another(numbered(1))
		r.add(outbox.RootTenant, 16, 0)
		r.fill(15)
		r.sleep(30 * time.Second)
		r.still(16)
	})
}
