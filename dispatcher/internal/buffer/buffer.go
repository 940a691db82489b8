// Package buffer holds the jobs of a queue that were claimed and wait for a worker, and decides which of them a worker
// takes next.
package buffer

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Buffer holds jobs that wait for a worker. Express jobs, those of tenants that hold few, do not wait behind other
// tenants' jobs. While tenants share the queue, some workers take no other jobs: whichever are free when all the others
// have one. Any goroutine may use it.
type Buffer[T any] struct {
	workers, reserved int
	since             func(T) time.Time

	mu      sync.Mutex
	changed sync.Cond // a job has come, or Close was called; L is mu
	express []T
	others  []T
	busy    int  // workers that took their last job from others
	shared  bool // by tenants
	closed  bool
}

// New returns a buffer for so many workers, of which some are reserved for express jobs while tenants share the queue.
// since returns when a job began to wait.
func New[T any](workers, reserved int, since func(T) time.Time) *Buffer[T] {
	b := &Buffer[T]{workers: workers, reserved: reserved, since: since}
	b.changed.L = &b.mu
	return b
}

// Put never blocks.
func (b *Buffer[T]) Put(job T, express bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if express {
		b.express = append(b.express, job)
	} else {
		b.others = append(b.others, job)
	}
	b.changed.Signal()
}

// Next waits for the next job for a worker; ok is false after Close. wasOther tells whether the worker's last job was
// not an express job, and other whether this one is not.
func (b *Buffer[T]) Next(wasOther bool) (job T, other, ok bool) {
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
			var none T // lets go of the job
			job, (*from)[0] = (*from)[0], none
			*from = (*from)[1:]
			if len(b.express) > 0 || b.hasOther() { // this worker may have made room for another one
				b.changed.Signal()
			}
			return job, other, true
		}
		b.changed.Wait()
	}
	return job, false, false
}

// hasOther reports whether a worker may take a job that is not an express job; mu is held.
func (b *Buffer[T]) hasOther() bool {
	most := b.workers
	if b.shared {
		most -= b.reserved
	}
	return len(b.others) > 0 && b.busy < most
}

// ExpressWaiting returns how many express jobs wait.
func (b *Buffer[T]) ExpressWaiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.express)
}

// Share keeps workers for express jobs, or frees them.
func (b *Buffer[T]) Share(shared bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shared && !shared {
		b.changed.Broadcast()
	}
	b.shared = shared
}

// TakeStale takes away the jobs that have waited since before the given time.
func (b *Buffer[T]) TakeStale(before time.Time) (stale []T) {
	b.mu.Lock()
	defer b.mu.Unlock()
	isStale := func(job T) bool {
		old := !b.since(job).After(before)
		if old {
			stale = append(stale, job)
		}
		return old
	}
	b.express, b.others = slices.DeleteFunc(b.express, isStale), slices.DeleteFunc(b.others, isStale)
	return stale
}

// Close makes the workers end, and returns the jobs that wait. Nothing may be put after it.
func (b *Buffer[T]) Close() []T {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	b.changed.Broadcast()
	return slices.Concat(b.express, b.others)
}
