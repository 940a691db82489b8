package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Queue is what waits in a queue and whether it is worked.
type Queue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	MaxRunning  int              `json:"maxRunning,omitempty" doc:"Jobs that may run at once, in all processes together; any number if left out"`
	Rate        *Rate            `json:"rate,omitempty" doc:"So many may start; any number if left out"`
	Jobs        map[string]int64 `json:"jobs" nullable:"false" doc:"Open jobs by status; a status without any is left out"`
}

type queuesOutput struct {
	Body struct {
		Queues []Queue   `json:"queues" nullable:"false"`
		AsOf   time.Time `json:"asOf" doc:"When they were counted: seconds ago as a rule, never more than a minute"`
	}
}

// queues are those of the jobs that are meant, as they were counted, and the rules of
// queues as they are.
func (s *server) queues(ctx context.Context, of *OfTenant) (queues []operator.Queue, asOf time.Time, err error) {
	tenant, err := of.tenant(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	counted, err := s.stats.look(ctx, tenant)
	if err != nil {
		return nil, time.Time{}, err
	}
	rules, err := s.operator.QueueRules(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	return counted.jobs.In(rules), counted.asOf, nil
}

// listQueues counts the jobs that the principal may see.
func (s *server) listQueues(ctx context.Context, in *OfTenant) (*queuesOutput, error) {
	queues, asOf, err := s.queues(ctx, in)
	if err != nil {
		return nil, err
	}
	out := &queuesOutput{}
	out.Body.AsOf = asOf
	out.Body.Queues = make([]Queue, len(queues))
	for i, q := range queues {
		jobs := map[string]int64{}
		for status, n := range q.Jobs {
			jobs[status.String()] = n
		}
		out.Body.Queues[i] = Queue{Queue: q.Name, PausedSince: utc(q.PausedSince), MaxRunning: q.MaxRunning, Rate: rateOf(q.Rate), Jobs: jobs}
	}
	return out, nil
}

type queueInput struct {
	Queue string `path:"queue" maxLength:"128" doc:"1 to 128 letters, digits and _ . : / -, first a letter or digit; or the name of any queue with open jobs"`
}

type queueOutput struct {
	Body struct {
		Queue  string `json:"queue"`
		Paused bool   `json:"paused"`
	}
}

func (s *server) pauseQueue(ctx context.Context, in *queueInput) (*queueOutput, error) {
	return s.setPaused(ctx, in.Queue, true)
}

func (s *server) resumeQueue(ctx context.Context, in *queueInput) (*queueOutput, error) {
	return s.setPaused(ctx, in.Queue, false)
}

func (s *server) setPaused(ctx context.Context, queue string, paused bool) (*queueOutput, error) {
	set := s.by(ctx).Resume
	if paused {
		set = s.by(ctx).Pause
	}
	if err := set(ctx, queue); err != nil {
		return nil, err
	}
	out := &queueOutput{}
	out.Body.Queue, out.Body.Paused = queue, paused
	return out, nil
}

type statsOutput struct{ Body Stats }

// Stats is how much there is to do.
type Stats struct {
	Open        int64            `json:"open" doc:"Jobs that are not finished, dead letters included"`
	DeadLetters int64            `json:"deadLetters" doc:"Jobs that wait for a person"`
	Jobs        map[string]int64 `json:"jobs" nullable:"false" doc:"Open jobs by status; a status without any is left out"`
	Paused      int              `json:"pausedQueues"`
	AsOf        time.Time        `json:"asOf" doc:"When they were counted: seconds ago as a rule, never more than a minute"`
}

func (s *server) getStats(ctx context.Context, in *OfTenant) (*statsOutput, error) {
	queues, asOf, err := s.queues(ctx, in)
	if err != nil {
		return nil, err
	}
	stats := Stats{Jobs: map[string]int64{}, AsOf: asOf}
	for _, q := range queues {
		if !q.PausedSince.IsZero() {
			stats.Paused++
		}
		for status, n := range q.Jobs {
			stats.Jobs[status.String()] += n
			stats.Open += n
			if status == outbox.Failed || status == outbox.Dead {
				stats.DeadLetters += n
			}
		}
	}
	return &statsOutput{Body: stats}, nil
}
