package dispatcher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// BatchConfig says how the jobs of a kind are gathered. The zero value is up to
// 100 jobs, gathered for at most 50 ms.
type BatchConfig struct {
	Max  int           // jobs of a batch, 1 to 1000; 0 is 100
	Wait time.Duration // for more, after the first, up to a minute; 0 is 50 ms

	// Protect opens payloads that were sealed and seals results, as [Opens] does for
	// handlers of one job; nil for none.
	Protect outbox.Protector
}

const (
	defaultBatchMax  = 100
	maxBatchMax      = 1000
	defaultBatchWait = 50 * time.Millisecond
	maxBatchWait     = time.Minute
)

func (b BatchConfig) validate() error {
	var errs []error
	if b.Max < 1 || b.Max > maxBatchMax {
		errs = append(errs, invalid("BatchConfig.Max", "is %d, want 1 to %d, or 0 for %d", b.Max, maxBatchMax, defaultBatchMax))
	}
	if b.Wait < 0 || b.Wait > maxBatchWait {
		errs = append(errs, invalid("BatchConfig.Wait", "is %s, want up to %s, or 0 for %s", b.Wait, maxBatchWait, defaultBatchWait))
	}
	return errors.Join(errs...)
}

// HandleMany registers a handler that gets up to batch.Max jobs of T's kind at
// once. It returns an outcome for each of them, in their order: nil, an error,
// [Discard], [RetryAfter], [RetryAtLeast], [Unavailable] or [Snooze], with the meaning
// that they have for [Handle]. Outcomes of another number fail every job with the code
// "outcome_count", and a panic fails every job with its stack. A job whose payload
// cannot be decoded is discarded by itself, and the handler does not see it.
//
// A batch takes one of the queue's worker slots, whatever its size, and lasts as
// long as the kind's timeout allows; a job's own Options.Timeout is not looked at.
// Its context ends with the timeout, when a shutdown's grace period is over, and
// when every job has lost its lease or was cancelled. For one of the jobs, ask
// [JobContext]. What the handler says of a job whose lease was lost is refused by
// the fence, as ever, and concerns no other job.
//
// Middleware of the mux wraps handlers of one job and does not wrap this one. A
// config that is out of bounds is a bug in the program and panics, as a second handler
// of the kind does, with an error that wraps an [*outbox.InvalidError] for each mistake.
func HandleMany[T outbox.Args](m *Mux, handler func(ctx context.Context, jobs []*outbox.Job[T]) []error, batch BatchConfig, config ...KindConfig) {
	batch.Max, batch.Wait = cmp.Or(batch.Max, defaultBatchMax), cmp.Or(batch.Wait, defaultBatchWait)
	if err := batch.validate(); err != nil {
		panic(fmt.Errorf("dispatcher: %w", err))
	}
	var zero T
	m.HandleRaw(zero.Kind(), nil, config...)
	m.routes[zero.Kind()].many = &many{BatchConfig: batch, handle: func(ctx context.Context, claimed []*outbox.Claimed) []error {
		outcomes := make([]error, len(claimed))
		jobs := make([]*outbox.Job[T], 0, len(claimed))
		places := make([]int, 0, len(claimed)) // of the jobs among the claimed
		for i, c := range claimed {
			if batch.Protect != nil {
				if err := c.Open(ctx, batch.Protect); err != nil {
					outcomes[i] = &codedError{codes.UnreadablePayload, err}
					continue
				}
			}
			job, err := decode[T](c)
			if outcomes[i] = err; err == nil {
				jobs, places = append(jobs, job), append(places, i)
			}
		}
		if len(jobs) == 0 {
			return outcomes
		}
		answers := handler(ctx, jobs)
		for i, place := range places {
			if len(answers) != len(jobs) {
				outcomes[place] = &codedError{"outcome_count", fmt.Errorf("the handler returned %d outcomes for %d jobs", len(answers), len(jobs))}
			} else {
				outcomes[place] = answers[i]
				if answers[i] == nil {
					outcomes[place] = claimed[place].SealResult(ctx)
				}
			}
		}
		return outcomes
	}}
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

// many is what a kind's route has if its jobs are handled together.
type many struct {
	BatchConfig
	handle func(context.Context, []*outbox.Claimed) []error // an outcome each
}

type batchKey struct{}

// batch is jobs on their way through the process together. Until it is in the
// buffer it belongs to whoever holds batches.mu, then to one worker.
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
