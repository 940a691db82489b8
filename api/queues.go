package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/watch"
)

// Queue counts the jobs in a queue and reports whether it is worked.
type Queue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	MaxRunning  int              `json:"maxRunning,omitempty" doc:"Jobs that may run at once, in all processes together; unlimited if omitted"`
	Rate        *Rate            `json:"rate,omitempty" doc:"Jobs that may start in an interval; unlimited if omitted"`
	Jobs        map[string]int64 `json:"jobs" nullable:"false" doc:"Open jobs by status; statuses without jobs are omitted"`
}

type queuesOutput struct {
	Body struct {
		Queues []Queue   `json:"queues" nullable:"false"`
		AsOf   time.Time `json:"asOf" doc:"When they were counted: usually seconds ago, never more than a minute"`
	}
}

// queues returns the counts of the selected jobs, and the present rules of queues.
func (s *server) queues(ctx context.Context, of *OfTenant) (count *watch.Counted, rules []operator.Queue, err error) {
	tenant, err := of.tenant(ctx)
	if err != nil {
		return nil, nil, err
	}
	if count, err = s.watch.Counts.Look(ctx, tenant); err != nil {
		return nil, nil, err
	}
	if rules, err = s.operator.QueueRules(ctx); err != nil {
		return nil, nil, err
	}
	return count, rules, nil
}

// listQueues counts the jobs that the principal may see.
func (s *server) listQueues(ctx context.Context, in *OfTenant) (*queuesOutput, error) {
	counted, rules, err := s.queues(ctx, in)
	if err != nil {
		return nil, err
	}
	queues := counted.Jobs.In(rules)
	out := &queuesOutput{}
	out.Body.AsOf = counted.AsOf
	out.Body.Queues = make([]Queue, len(queues))
	for i, q := range queues {
		jobs := map[string]int64{}
		for status, n := range q.Jobs {
			jobs[string(status)] = n
		}
		out.Body.Queues[i] = Queue{
			Queue: q.Name, PausedSince: utc(q.PausedSince), MaxRunning: q.MaxRunning,
			Rate: rateOf(q.Rate), Jobs: jobs,
		}
	}
	return out, nil
}

type queueInput struct {
	ForAudit
	Queue string `path:"queue" maxLength:"128" doc:"Name of the queue: 1 to 128 letters, digits and _ . : / -, the first a letter or digit; or the name of any queue with open jobs"`
}

type queueOutput struct {
	Body struct {
		Queue  string `json:"queue"`
		Paused bool   `json:"paused"`
	}
}

func (s *server) pauseQueue(ctx context.Context, in *queueInput) (*queueOutput, error) {
	return s.setPaused(ctx, in, true)
}

func (s *server) resumeQueue(ctx context.Context, in *queueInput) (*queueOutput, error) {
	return s.setPaused(ctx, in, false)
}

func (s *server) setPaused(ctx context.Context, in *queueInput, paused bool) (*queueOutput, error) {
	by := s.by(ctx).Because(in.Reason)
	set := by.Resume
	if paused {
		set = by.Pause
	}
	if err := set(ctx, in.Queue); err != nil {
		return nil, err
	}
	out := &queueOutput{}
	out.Body.Queue, out.Body.Paused = in.Queue, paused
	return out, nil
}

type statsOutput struct{ Body Stats }

// Stats counts the work to do.
type Stats struct {
	Open        int64            `json:"open" doc:"Jobs that are not finished, dead letters included"`
	DeadLetters int64            `json:"deadLetters" doc:"Dead letters"`
	Jobs        map[string]int64 `json:"jobs" nullable:"false" doc:"Open jobs by status; statuses without jobs are omitted"`
	Paused      int              `json:"pausedQueues"`
	AsOf        time.Time        `json:"asOf" doc:"When they were counted: usually seconds ago, never more than a minute"`
}

func (s *server) getStats(ctx context.Context, in *OfTenant) (*statsOutput, error) {
	counted, rules, err := s.queues(ctx, in)
	if err != nil {
		return nil, err
	}
	stats := Stats{Jobs: map[string]int64{}, AsOf: counted.AsOf}
	for _, q := range rules {
		if !q.PausedSince.IsZero() {
			stats.Paused++
		}
	}
	for _, of := range counted.Jobs { // all queues, also beyond those that are listed
		for status, n := range of.Jobs {
			stats.Jobs[string(status)] += n
			stats.Open += n
			if status == outbox.Failed || status == outbox.Dead {
				stats.DeadLetters += n
			}
		}
	}
	return &statsOutput{Body: stats}, nil
}
