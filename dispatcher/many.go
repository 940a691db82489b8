package dispatcher

import (
	"cmp"
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// HandleMany registers a handler that gets up to batch.Max jobs of T's kind at once. The handler returns one outcome
// for each job, in the order of the jobs: nil, an error, [Discard], [RetryAfter], [RetryAtLeast], [Unavailable] or
// [Snooze], with the same meaning as for [Handle]. If the number of outcomes differs from the number of jobs, every job
// fails with the code "outcome_count"; a panic fails every job with its stack. A job whose payload cannot be decoded is
// discarded alone, and the handler does not see it.
//
// A batch takes any due jobs of the kind: of several tenants, priorities and keys. A handler that acts for a tenant
// reads the tenant of each job.
//
// A batch takes one of the queue's worker slots, whatever its size, and lasts as long as the kind's timeout allows; a
// job's own Options.Timeout is ignored. Its context ends with the timeout, when a shutdown's grace period is over, and
// when every job has lost its lease or was cancelled. Use [JobContext] for the context of a single job. The fence
// refuses the outcome of a job whose lease was lost, as always; other jobs are not affected.
//
// Middleware of the mux wraps handlers of one job, and does not wrap this one. An invalid config is a bug in the
// program: HandleMany panics, as it does for a second handler of the kind, with an error that wraps an
// [*outbox.InvalidError] for each mistake.
func HandleMany[T outbox.Args](m *Mux, handler func(ctx context.Context, jobs []*outbox.Job[T]) []error,
	batch BatchConfig, config ...KindConfig,
) {
	var zero T
	if handler == nil {
		m.HandleManyRaw(zero.Kind(), nil, batch, config...) // panics
	}
	m.HandleManyRaw(zero.Kind(), func(ctx context.Context, claimed []*outbox.Claimed) []error {
		jobs := make([]*outbox.Job[T], 0, len(claimed))
		return ofThose(claimed, func(c *outbox.Claimed) error {
			job, err := decode[T](c)
			if err == nil {
				jobs = append(jobs, job)
			}
			return err
		}, func([]*outbox.Claimed) []error { return handler(ctx, jobs) })
	}, batch, config...)
}

// HandleManyRaw registers a handler as [HandleMany] does. The handler reads the payloads' bytes.
func (m *Mux) HandleManyRaw(kind string, handler func(ctx context.Context, jobs []*outbox.Claimed) []error,
	batch BatchConfig, config ...KindConfig,
) {
	batch.Max, batch.Wait = cmp.Or(batch.Max, defaultBatchMax), cmp.Or(batch.Wait, defaultBatchWait)
	if err := batch.validate(); err != nil {
		panic(fmt.Errorf("dispatcher: %w", err))
	}
	m.register(kind, nil, handler == nil, config)
	m.routes[kind].many = &many{
		BatchConfig: batch,
		handle: func(ctx context.Context, claimed []*outbox.Claimed) []error {
			outcomes := ofThose(claimed, func(c *outbox.Claimed) error {
				if batch.Protect == nil {
					return nil
				}
				if err := openPayload(ctx, batch.Protect, c); err != nil {
					return outcome.WithCode(codes.UnreadablePayload, err)
				}
				return nil
			}, func(opened []*outbox.Claimed) []error { return handler(ctx, opened) })
			for i, c := range claimed {
				if outcomes[i] == nil {
					outcomes[i] = sealResult(ctx, c)
				}
			}
			return outcomes
		},
	}
}

// ofThose calls handle with the jobs that admit accepts, if there are any. It returns an outcome for every job: why
// admit refused it, or the outcome from handle.
func ofThose(claimed []*outbox.Claimed, admit func(*outbox.Claimed) error,
	handle func([]*outbox.Claimed) []error,
) []error {
	outcomes := make([]error, len(claimed))
	admitted := make([]*outbox.Claimed, 0, len(claimed))
	places := make([]int, 0, len(claimed)) // indices of the admitted jobs in claimed
	for i, c := range claimed {
		if outcomes[i] = admit(c); outcomes[i] == nil {
			admitted, places = append(admitted, c), append(places, i)
		}
	}
	if len(admitted) == 0 {
		return outcomes
	}
	answers := handle(admitted)
	for i, place := range places {
		if len(answers) != len(admitted) {
			outcomes[place] = outcome.WithCode(codes.OutcomeCount,
				fmt.Errorf("the handler returned %d outcomes for %d jobs", len(answers), len(admitted)))
		} else {
			outcomes[place] = answers[i]
		}
	}
	return outcomes
}
