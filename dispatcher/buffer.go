package dispatcher

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
)

// buffer holds the jobs of a queue that were claimed and wait for a worker. Express jobs, those of tenants that hold
// few, do not wait behind other tenants' jobs. While tenants share the queue, one worker in scheduler.ExpressPart takes
// no other jobs: whichever workers are free when all the others have one.
type buffer struct {
	workers int

	mu      sync.Mutex
	changed sync.Cond // a job has come, or close was called; L is mu
	express []*attempt
	others  []*attempt
	busy    int  // workers that took their last job from others
	shared  bool // by tenants
	closed  bool
}

func newBuffer(workers int) *buffer {
	b := &buffer{workers: workers}
	b.changed.L = &b.mu
	return b
}

func (b *buffer) put(a *attempt, express bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if express {
		b.express = append(b.express, a)
	} else {
		b.others = append(b.others, a)
	}
	b.changed.Signal()
}

// next waits for the next job for a worker; it returns nil after close. wasOther tells whether the worker's last job
// was not an express job, and other whether this one is not.
func (b *buffer) next(wasOther bool) (a *attempt, other bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if wasOther {
		b.busy--
	}
	for !b.closed {
		// When both wait, chance decides, so that neither starves.
		from := &b.express
		if other = b.hasOther() && (len(b.express) == 0 || rand.N(2) == 0); other {
			from = &b.others
			b.busy++
		}
		if len(*from) > 0 {
			a, (*from)[0] = (*from)[0], nil
			*from = (*from)[1:]
			if len(b.express) > 0 || b.hasOther() { // this worker may have made room for another one
				b.changed.Signal()
			}
			return a, other
		}
		b.changed.Wait()
	}
	return nil, false
}

// hasOther reports whether a worker may take a job that is not an express job; mu is held.
func (b *buffer) hasOther() bool {
	most := b.workers
	if b.shared {
		most -= b.workers / scheduler.ExpressPart
	}
	return len(b.others) > 0 && b.busy < most
}

// expressWaiting returns how many express jobs wait.
func (b *buffer) expressWaiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.express)
}

// share keeps workers for express jobs, or frees them.
func (b *buffer) share(shared bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared && !shared {
		b.changed.Broadcast()
	}
	b.shared = shared
}

// takeStale takes away the jobs that have waited since before the given time.
func (b *buffer) takeStale(before time.Time) (stale []*attempt) {
	b.mu.Lock()
	defer b.mu.Unlock()
	isStale := func(a *attempt) bool {
		old := !a.bufferedAt().After(before)
		if old {
			stale = append(stale, a)
		}
		return old
	}
	b.express, b.others = slices.DeleteFunc(b.express, isStale), slices.DeleteFunc(b.others, isStale)
	return stale
}

// close makes the workers end, and returns the jobs that wait. Nothing may be put after it.
func (b *buffer) close() []*attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.changed.Broadcast()
	return slices.Concat(b.express, b.others)
}
