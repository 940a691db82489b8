package dispatcher

import (
	"cmp"
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

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
				if err := openPayload(ctx, batch.Protect, c); err != nil {
					outcomes[i] = outcome.WithCode(codes.UnreadablePayload, err)
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
				outcomes[place] = outcome.WithCode("outcome_count", fmt.Errorf("the handler returned %d outcomes for %d jobs", len(answers), len(jobs)))
			} else {
				outcomes[place] = answers[i]
				if answers[i] == nil {
					outcomes[place] = sealResult(ctx, claimed[place])
				}
			}
		}
		return outcomes
	}}
}
