package api

import (
	"context"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/operator"
)

// Rate limits starts: in any span of the interval at most that many jobs start.
type Rate struct {
	Starts          int     `json:"starts" minimum:"0" maximum:"1000000" doc:"Attempts that may start in an interval; all of them may start at once. 0 removes the limit"`
	IntervalSeconds float64 `json:"intervalSeconds,omitempty" minimum:"0" maximum:"2678400" doc:"At least 0.01, up to 31 days"`
}

// QueueLimits are the limits to set.
type QueueLimits struct {
	MaxRunning *int  `json:"maxRunning,omitempty" minimum:"0" maximum:"10000" nullable:"false" doc:"Jobs that may run at once, in all processes together. 0 removes the limit; if omitted, it stays as it is"`
	Rate       *Rate `json:"rate,omitempty" nullable:"false" doc:"If omitted, it stays as it is"`
}

type queueLimitsInput struct {
	ForAudit
	Queue string `path:"queue" maxLength:"128" doc:"Name of the queue, as for /queues/{queue}/pause"`
	Body  QueueLimits
}

type queueLimitsOutput struct {
	Body struct {
		Queue      string `json:"queue"`
		MaxRunning int    `json:"maxRunning,omitempty" doc:"Unlimited if omitted"`
		Rate       *Rate  `json:"rate,omitempty" doc:"Unlimited if omitted"`
	}
}

// limitQueue sets or lifts limits and answers with those in effect afterwards.
func (s *server) limitQueue(ctx context.Context, in *queueLimitsInput) (*queueLimitsOutput, error) {
	limits := operator.Limits{MaxRunning: in.Body.MaxRunning}
	if r := in.Body.Rate; r != nil {
		limits.Rate = &operator.Rate{Starts: r.Starts, Interval: pgvalue.Seconds(r.IntervalSeconds)}
	}
	if limits == (operator.Limits{}) {
		return nil, invalidInput.because("", Fault{Pointer: "#", Detail: "wants maxRunning or rate, or both"})
	}
	maxRunning, rate, err := s.by(ctx).Because(in.Reason).Limit(ctx, in.Queue, limits)
	if err != nil {
		return nil, err
	}
	out := &queueLimitsOutput{}
	out.Body.Queue, out.Body.MaxRunning, out.Body.Rate = in.Queue, maxRunning, rateOf(rate)
	return out, nil
}

// rateOf returns nil for no limit.
func rateOf(r operator.Rate) *Rate {
	if r.Starts == 0 {
		return nil
	}
	return &Rate{Starts: r.Starts, IntervalSeconds: r.Interval.Seconds()}
}
