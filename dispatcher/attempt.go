package dispatcher

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

// attempt is one claimed job on its way through the process.
type attempt struct {
	// Set by the claim.
	job      *outbox.Claimed
	lease    lease.Lease
	route    *route
	capacity *capacity         // of the job's queue
	tenant   *scheduler.Tenant // the tenant that the job counts against; nil if none
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
}

// together returns the attempts that one call of the handler runs.
func (a *attempt) together() []*attempt {
	if a.batch != nil {
		return a.batch.attempts
	}
	return []*attempt{a}
}

func fencesOf(attempts []*attempt) (ids []pgtype.UUID, epochs []int64, starts []pgtype.Timestamptz) {
	return engine.Fences(attempts, func(a *attempt) engine.Fence {
		return engine.FenceOf(a.job.ID, a.job.Epoch, a.job.StartedAt)
	})
}

func leasesOf(attempts []*attempt) iter.Seq[*lease.Lease] {
	return func(yield func(*lease.Lease) bool) {
		for _, a := range attempts {
			if !yield(&a.lease) {
				return
			}
		}
	}
}

func unstored(batch []*attempt) (left []*attempt) {
	for _, a := range batch {
		if !a.stored {
			left = append(left, a)
		}
	}
	return left
}

// bufferedAt returns when the attempt began to wait for a worker.
func (a *attempt) bufferedAt() time.Time {
	if a.batch != nil {
		return a.batch.sent
	}
	return a.arrived
}

// isUnmoved reports whether the job's row should still be where its claim left it. An extension of the lease moves the
// row, and is due after a third of the lease's time.
func (a *attempt) isUnmoved(now time.Time, leaseTTL time.Duration) bool {
	return a.rowAt.Valid && now.Sub(a.lease.Claimed) < leaseTTL/4
}

// LeaseLost and LoseLease are for report.Owner.
func (a *attempt) LeaseLost() bool { return errors.Is(a.lease.Ended(), outbox.ErrLeaseLost) }
func (a *attempt) LoseLease()      { a.lease.End(outbox.ErrLeaseLost) }

// mayBeCalledOff reports whether the attempt's job may still be closed as cancelled or expired. It excludes an attempt
// that completed its job in a transaction of its own, because the row is gone, unless the attempt was stopped or has a
// deadline. If that transaction was rolled back after all and reported nothing, the lease lapses.
func (a *attempt) mayBeCalledOff() bool {
	if a.err != nil || !engine.InternalOf(a.job).Completed.Load() {
		return true
	}
	return a.lease.Ended() != nil || !a.deadline.IsZero()
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

	mu      sync.Mutex // locked after the mutex of a lease
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
