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
	"github.com/posthaste-dev/posthaste/outbox"
)

// attempt is one claimed job on its way through the process.
type attempt struct {
	job      *outbox.Claimed
	route    *route
	waker    *waker    // of its queue
	claimed  time.Time // when the claim was sent, by the monotonic clock
	arrived  time.Time // when its answer was there, by which the job waits for a worker
	deadline time.Time // the job's deadline by the monotonic clock; zero: it has none
	outcome  outcome.Outcome
	err      error             // what the handler returned, for the log
	returned bool              // given back without having been started
	tenant   *scheduler.Tenant // in whose hands it counts; nil: in nobody's
	probe    bool              // finds out whether what its kind needs is still away
	follows  bool              // there are follow-ups to store with a success
	extra    int               // bytes of them
	took     time.Duration     // by the handler
	stored   bool              // by a try that failed later on, see closeCalledOff
	place    pgtype.TID        // where its claim has left the row; not valid: not known
	streamed bool              // each change of the job is an event
	batch    *batch            // of which this is the first; nil for a job by itself
	reports  report.Reports
	span     engine.Span     // nil without tracing; a batch's is the first's
	traced   context.Context // in which the span is, for log lines; nil without tracing
	spanned  string          // the traceparent of its span, if that is sampled; "" otherwise

	handlerDone atomic.Bool // the handler has returned; of a batch, the first's. For reportOverrun

	mu          sync.Mutex
	begun       time.Time               // when the handler started; zero: it has not
	leaseUntil  time.Time               // by our monotonic clock, earlier than the database's
	extendUntil time.Time               // from then on the lease is no longer extended; zero: no handler is at work
	stopCause   error                   // why it may not run any longer: the lease is lost, or a shutdown cuts it off
	cancel      context.CancelCauseFunc // of the running handler
}

// together are the attempts that are run by one call of the handler.
func (a *attempt) together() []*attempt {
	if a.batch != nil {
		return a.batch.attempts
	}
	return []*attempt{a}
}

// begin marks the handler as running, unless the attempt was ended in the buffer
// or its lease is over.
func (a *attempt) begin(cancel context.CancelCauseFunc, now, extendUntil time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cancel, a.begun, a.extendUntil = cancel, now, extendUntil
	return a.stopCause == nil && now.Before(a.leaseUntil)
}

// over marks the handler as one that has returned: what it has left is an outcome, whose lease goes on for as long as
// the database does not take it.
func (a *attempt) over() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.extendUntil = time.Time{}
}

// bufferedAt is since when an attempt waits for a worker.
func (a *attempt) bufferedAt() time.Time {
	if a.batch != nil {
		return a.batch.sent
	}
	return a.arrived
}

// extended moves the time until which we trust the lease; it reports whether that
// had passed when the extension was sent.
func (a *attempt) extended(sent, until time.Time) (late bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	late = clock.Elapsed(a.leaseUntil, sent) > 0
	a.leaseUntil = until
	return late
}

// needsExtension reports whether the lease has been used for a third. After the machine was suspended, an extension says
// at once whether it is lost; for a wall clock that was set ahead it is one too many. Begin and lapsed do not
// look at that clock: set ahead, it would stop every handler.
//
// A handler
// that goes on although its time was over long ago is not kept any longer: its
// lease lapses, and the reaper bounds it.
func (a *attempt) needsExtension(now time.Time, third time.Duration) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return clock.Elapsed(a.leaseUntil, now) >= -third && !errors.Is(a.stopCause, outbox.ErrLeaseLost) &&
		(a.extendUntil.IsZero() || now.Before(a.extendUntil))
}

// lapsed reports whether we may no longer trust the lease.
func (a *attempt) lapsed(now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return now.After(a.leaseUntil)
}

// end takes the attempt's right to run: the handler's context ends with the cause.
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

// mayBeCalledOff leaves out attempts that completed their job in a transaction of
// their own: the row is gone, as they said. If that transaction was rolled back
// after all and said nothing, the lease lapses.
func (a *attempt) mayBeCalledOff() bool {
	if a.err != nil || !engine.Of(a.job).Completed.Load() {
		return true
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stopCause != nil || !a.deadline.IsZero()
}

// age is how long the handler has been running, or its job has waited for a worker or
// for the rest of its batch; 0 if that is not long enough to matter, or if it was asked
// to stop.
func (a *attempt) age(now time.Time, least time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.stopCause != nil {
		return 0
	}
	if a.begun.IsZero() {
		if waited := now.Sub(a.claimed); waited >= least { // most are started long before
			return waited
		}
		return 0
	}
	return now.Sub(a.begun)
}

// size is what the settlement moves.
func (a *attempt) size() int { return len(a.job.Payload) + len(a.job.Result) + a.extra }

// Attrs are the keys that the three job events have in common.
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

// batch is jobs on their way through the process together. Until it is in the
// buffer it belongs to the holder of batches.mu, then to one worker.
type batch struct {
	attempts []*attempt
	timer    *time.Timer
	sent     time.Time // to the workers

	mu      sync.Mutex // after an attempt's
	cancel  context.CancelCauseFunc
	left    int                                           // jobs that may still run
	ended   map[*outbox.Claimed]error                     // why the others may not
	cancels map[*outbox.Claimed][]context.CancelCauseFunc // of their own contexts
}

// end takes one job's right to run. The context of the batch goes on for the
// others, unless the process stops or there are none.
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

// JobContext returns the context of one job of a batch, for what is done for that
// job alone: it ends with ctx, and when the job's own lease is lost, the job is
// cancelled, or its deadline has come. ctx is the
// handler's, or derived from it. In a handler of one job it is ctx itself.
func JobContext(ctx context.Context, job *outbox.Claimed) context.Context {
	b, ok := ctx.Value(batchKey{}).(*batch)
	if !ok {
		return ctx
	}
	own, cancel := context.WithCancelCause(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if cause := b.ended[job]; cause != nil {
		cancel(cause)
	}
	b.cancels[job] = append(b.cancels[job], cancel)
	return own
}
