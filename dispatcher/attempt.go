package dispatcher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/clock"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// attempt is one claimed job on its way through the process.
type attempt struct {
	// Set by the claim.
	job      *outbox.Claimed
	route    *route
	waker    *waker            // of the job's queue
	tenant   *scheduler.Tenant // the tenant that the job counts against; nil if none
	claimed  time.Time         // when the claim was sent, by the monotonic clock
	arrived  time.Time         // when the claim's answer arrived; the wait for a worker counts from here
	deadline time.Time         // the job's deadline by the monotonic clock; zero if it has none
	rowAt    pgtype.TID        // where the claim has left the row; invalid if unknown
	streamed bool              // each change of the job is an event
	traced   context.Context   // for log lines: that of all handlers, and with tracing that of the span

	// Set on the way to the handler and while it runs.
	batch       *batch // the batch that this attempt leads; nil for a single job
	probe       bool   // finds out whether the kind's dependency is still unavailable
	reports     report.Reports
	span        engine.Span // nil without tracing; a batch keeps it in its first attempt
	spanned     string      // the span's traceparent, if it is sampled; "" otherwise
	handlerDone atomic.Bool // set when the handler has returned, in a batch on the first; reportOverrun reads it

	// Set at the end, and read by the settler and the reporter.
	outcome  outcome.Outcome
	err      error         // what the handler returned, for the log
	returned bool          // given back without having been started
	took     time.Duration // time that the handler took
	follows  bool          // a success has follow-ups to store
	extra    int           // bytes of the follow-ups
	stored   bool          // the database has the outcome

	// Its lease, and whether it may go on.
	mu          sync.Mutex
	begun       time.Time               // when the handler started; zero if it has not
	leaseUntil  time.Time               // by this process's monotonic clock; earlier than the database's
	extendUntil time.Time               // when extensions of the lease end; zero while no handler is at work
	stopCause   error                   // why it may not go on: the lease is lost, it is cancelled, a shutdown
	cancel      context.CancelCauseFunc // of the running handler
}

// together returns the attempts that one call of the handler runs.
func (a *attempt) together() []*attempt {
	if a.batch != nil {
		return a.batch.attempts
	}
	return []*attempt{a}
}

// keysOf returns the ids and the epochs of attempts, in the form in which statements take them.
func keysOf(attempts []*attempt) (ids []pgtype.UUID, epochs []int64) {
	ids, epochs = make([]pgtype.UUID, len(attempts)), make([]int64, len(attempts))
	for i, a := range attempts {
		ids[i], epochs[i] = pgvalue.UUID(a.job.ID), a.job.Epoch
	}
	return ids, epochs
}

// unstored returns the attempts whose outcomes are not stored.
func unstored(batch []*attempt) (left []*attempt) {
	for _, a := range batch {
		if !a.stored {
			left = append(left, a)
		}
	}
	return left
}

// begin marks the handler as running. It reports false if the attempt was ended in the buffer or its lease is over.
func (a *attempt) begin(cancel context.CancelCauseFunc, now, extendUntil time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel, a.begun, a.extendUntil = cancel, now, extendUntil
	return a.stopCause == nil && now.Before(a.leaseUntil)
}

// handlerReturned marks the handler as returned. An outcome is left, and its lease is extended until the database takes
// it.
func (a *attempt) handlerReturned() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.extendUntil = time.Time{}
}

// bufferedAt returns when the attempt began to wait for a worker.
func (a *attempt) bufferedAt() time.Time {
	if a.batch != nil {
		return a.batch.sent
	}
	return a.arrived
}

// extended sets the time until which this process trusts the lease. It reports whether the previous time had passed
// when the extension was sent.
func (a *attempt) extended(sent, until time.Time) (late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	late = clock.Elapsed(a.leaseUntil, sent) > 0
	a.leaseUntil = until
	return late
}

// needsExtension reports whether a third of the lease has been used. After the machine was suspended, an extension
// finds out at once whether the lease is lost; if the wall clock was set ahead, it is one extension too many. begin and
// lapsed do not look at the wall clock: set ahead, it would stop every handler.
//
// The lease of a handler that goes on long after its time is over is not extended any more: it lapses, and the reaper
// takes the job over.
func (a *attempt) needsExtension(now time.Time, renewBelow time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return clock.Elapsed(a.leaseUntil, now) >= -renewBelow && !errors.Is(a.stopCause, outbox.ErrLeaseLost) &&
		(a.extendUntil.IsZero() || now.Before(a.extendUntil))
}

// isUnmoved reports whether the job's row should still be where its claim left it. An extension of the lease moves the
// row, and is due after a third of the lease's time.
func (a *attempt) isUnmoved(now time.Time, leaseTTL time.Duration) bool {
	return a.rowAt.Valid && now.Sub(a.claimed) < leaseTTL/4
}

// lapsed reports whether this process may no longer trust the lease.
func (a *attempt) lapsed(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.After(a.leaseUntil)
}

// end stops the attempt: the handler's context ends with the cause.
func (a *attempt) end(cause error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopCause == nil {
		a.stopCause = cause
		if a.cancel != nil {
			a.cancel(cause)
		}
	}
	if errors.Is(cause, outbox.ErrLeaseLost) {
		a.stopCause = cause // there is nothing left to extend
	}
}

// LeaseLost reports whether the lease is known to be lost.
func (a *attempt) LeaseLost() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Is(a.stopCause, outbox.ErrLeaseLost)
}

// LoseLease ends the attempt because its lease is lost.
func (a *attempt) LoseLease() { a.end(outbox.ErrLeaseLost) }

// mayBeCalledOff reports whether the attempt's job may still be closed as cancelled or expired. It excludes an attempt
// that completed its job in a transaction of its own, because the row is gone, unless the attempt was stopped or has a
// deadline. If that transaction was rolled back after all and reported nothing, the lease lapses.
func (a *attempt) mayBeCalledOff() bool {
	if a.err != nil || !engine.InternalOf(a.job).Completed.Load() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopCause != nil || !a.deadline.IsZero()
}

// age returns how long the handler has been running, or how long its job has waited for a worker or for the rest of its
// batch. It returns 0 if that wait is too short to matter, or if the attempt was asked to stop.
func (a *attempt) age(now time.Time, least time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopCause != nil {
		return 0
	}
	if a.begun.IsZero() {
		if waited := now.Sub(a.claimed); waited >= least { // most jobs start long before
			return waited
		}
		return 0
	}
	return now.Sub(a.begun)
}

// size returns how many bytes the settlement moves.
func (a *attempt) size() int { return len(a.job.Payload) + len(a.job.Result) + a.extra }

// Attrs returns the attributes that the log lines of a job's starts and ends have in common.
func (a *attempt) Attrs(event string, more ...slog.Attr) []slog.Attr {
	attrs := make([]slog.Attr, 0, 6+len(more))
	attrs = append(attrs,
		slog.String("event", event),
		slog.String("job_id", a.job.ID.String()),
		slog.String("kind", a.job.Kind),
		slog.String("queue", a.job.Queue),
		slog.Int("attempt", a.job.Attempt),
		slog.String("worker_id", a.job.Worker))
	return append(attrs, more...)
}

type batchKey struct{}

// batch is a group of jobs on their way through the process together. Until it is in the buffer, the holder of
// batches.mu owns it; then one worker does.
type batch struct {
	attempts []*attempt
	timer    *time.Timer
	sent     time.Time // when it was sent to the workers

	mu      sync.Mutex // locked after an attempt's mu
	cancel  context.CancelCauseFunc
	left    int                                           // jobs that may still run
	ended   map[*outbox.Claimed]error                     // why the other jobs may not
	cancels map[*outbox.Claimed][]context.CancelCauseFunc // of the jobs' own contexts
}

// end stops one job. The context of the batch goes on for the others, unless the process stops or no job is left.
func (b *batch) end(a *attempt, cause error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended[a.job] != nil {
		return
	}
	b.ended[a.job] = cause
	for _, cancel := range b.cancels[a.job] {
		cancel(cause)
	}
	if b.left--; b.left == 0 || errors.Is(cause, ErrShutdown) {
		b.cancel(cause)
	}
}

func (b *batch) whyEnded(a *attempt) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ended[a.job]
}

// JobContext returns the context of one job of a batch, for work that concerns that job alone. It ends with ctx, and
// also when the job's own lease is lost, the job is cancelled, or its deadline comes. ctx must be the handler's context
// or derived from it. In a handler of one job JobContext returns ctx itself.
func JobContext(ctx context.Context, job *outbox.Claimed) context.Context {
	b, ok := ctx.Value(batchKey{}).(*batch)
	if !ok {
		return ctx
	}
	jobCtx, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if cause := b.ended[job]; cause != nil {
		cancel(cause)
	}
	b.cancels[job] = append(b.cancels[job], cancel)
	return jobCtx
}
