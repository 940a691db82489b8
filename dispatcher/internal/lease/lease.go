// Package lease holds the leases of the jobs that a process has claimed. It extends those of jobs that run long enough
// to need it, and ends the handlers of jobs that the process no longer holds or that were cancelled.
//
// A process stops a handler before the database lets another worker start: it trusts a lease for nine tenths of its
// time. The database counts from the write and the process from the sending, so the rest only has to cover the time
// that a handler takes to notice.
package lease

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/internal/clock"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Lease is a job that this process holds, from its claim until its outcome is stored.
type Lease struct {
	Job     *outbox.Claimed
	Claimed time.Time // when the claim was sent, by the monotonic clock

	mu          sync.Mutex
	begun       time.Time               // when the handler started; zero if it has not
	until       time.Time               // by this process's monotonic clock; earlier than the database's
	extendUntil time.Time               // when extensions end; zero while no handler is at work
	stopCause   error                   // why the handler may not go on: the lease is lost, it is cancelled, a shutdown
	cancel      context.CancelCauseFunc // of the running handler
}

// Fence identifies the claim.
func (l *Lease) Fence() engine.Fence {
	return engine.FenceOf(l.Job.ID, l.Job.Epoch, l.Job.StartedAt)
}

// Begin marks the handler as running. It reports false if the lease was ended before, is over, or is no Keeper's.
func (l *Lease) Begin(cancel context.CancelCauseFunc, now, extendUntil time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cancel, l.begun, l.extendUntil = cancel, now, extendUntil
	return l.stopCause == nil && now.Before(l.until)
}

// HandlerReturned marks the handler as returned. An outcome is left, and its lease is extended until the database takes
// it.
func (l *Lease) HandlerReturned() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.extendUntil = time.Time{}
}

// End ends the context of the handler with the cause, or keeps it from being called.
func (l *Lease) End(cause error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopCause == nil {
		l.stopCause = cause
		if l.cancel != nil {
			l.cancel(cause)
		}
	}
	if errors.Is(cause, outbox.ErrLeaseLost) {
		l.stopCause = cause // there is nothing left to extend
	}
}

// Ended returns why the handler may not go on, or nil if it may.
func (l *Lease) Ended() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stopCause
}

// extended sets the time until which this process trusts the lease. It reports whether the previous time had passed
// when the extension was sent.
func (l *Lease) extended(sent, until time.Time) (late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	late = clock.Elapsed(l.until, sent) > 0
	l.until = until
	return late
}

// needsExtension reports whether a third of the lease has been used. After the machine was suspended, an extension
// finds out at once whether the lease is lost; if the wall clock was set ahead, it is one extension too many. Begin and
// lapsed do not look at the wall clock: set ahead, it would stop every handler.
//
// The lease of a handler that goes on long after its time is over is not extended any more: it lapses, and the reaper
// takes the job over.
func (l *Lease) needsExtension(now time.Time, renewBelow time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return clock.Elapsed(l.until, now) >= -renewBelow && !errors.Is(l.stopCause, outbox.ErrLeaseLost) &&
		(l.extendUntil.IsZero() || now.Before(l.extendUntil))
}

// lapsed reports whether this process may no longer trust the lease.
func (l *Lease) lapsed(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return now.After(l.until)
}

// age returns how long the handler has been running, or how long its job has waited for a worker or for the rest of its
// batch. It returns 0 if that wait is too short to matter, or if the lease was ended.
func (l *Lease) age(now time.Time, least time.Duration) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopCause != nil {
		return 0
	}
	if l.begun.IsZero() {
		if waited := now.Sub(l.Claimed); waited >= least { // most jobs start long before
			return waited
		}
		return 0
	}
	return now.Sub(l.begun)
}
