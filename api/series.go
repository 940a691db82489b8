package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/watch"
)

// Series is the history step by step.
type Series struct {
	Since       time.Time     `json:"since"`
	StepSeconds int           `json:"stepSeconds"`
	Points      []SeriesPoint `json:"points" nullable:"false" doc:"One point per step, oldest first"`
	Marks       []SeriesMark  `json:"marks" nullable:"false" doc:"Events that may explain the measurements, oldest first"`
}

// SeriesPoint contains the measurements of one step.
type SeriesPoint struct {
	At              time.Time `json:"at" doc:"Start of the step"`
	MeasuredSeconds float64   `json:"measuredSeconds" doc:"Measured part of the step, usually all of it; divide counts by it for rates. 0: not measured"`
	Waiting         int64     `json:"waiting" doc:"Jobs that were pending, retrying or blocked: the maximum of the step, as for the next two"`
	Running         int64     `json:"running"`
	DeadLetters     int64     `json:"deadLetters"`
	Enqueued        int64     `json:"enqueued"`
	Succeeded       int64     `json:"succeeded"`
	Unsuccessful    int64     `json:"unsuccessful" doc:"Jobs closed in a status other than succeeded"`
	Failed          int64     `json:"failed" doc:"Failed attempts, including those of jobs that are retried"`
	WaitP50Seconds  float64   `json:"waitP50Seconds" doc:"Median wait of the closed jobs since they were due, accurate to a power of two"`
	WaitP99Seconds  float64   `json:"waitP99Seconds"`
}

// SeriesMark is a build that workers began to run, or an act of an operator.
type SeriesMark struct {
	At        time.Time `json:"at"`
	Build     string    `json:"build,omitempty" doc:"Build that workers started to run. For all tenants only"`
	Actor     string    `json:"actor,omitempty"`
	Act       string    `json:"act,omitempty" example:"queue.pause"`
	Queue     string    `json:"queue,omitempty"`
	Target    string    `json:"target,omitempty"`
	Reason    string    `json:"reason,omitempty"`
	RequestID string    `json:"requestId,omitempty"`
	Acts      int       `json:"acts,omitempty" doc:"Number of equal acts of the same request"`
}

type seriesInput struct {
	OfTenant
	Queue string    `query:"queue" maxLength:"128"`
	Kind  string    `query:"kind" maxLength:"128"`
	Since time.Time `query:"since" doc:"Start of the period; an hour before its end if omitted"`
	Until time.Time `query:"until" doc:"End of the period; now if omitted"`
	Step  int       `query:"step" minimum:"60" maximum:"86400" default:"60" doc:"Seconds between the points, for at most 1 000 of them"`
}

type seriesOutput struct{ Body Series }

func (s *server) getSeries(ctx context.Context, in *seriesInput) (*seriesOutput, error) {
	tenant, err := in.tenant(ctx)
	if err != nil {
		return nil, err
	}
	f := operator.SeriesFilter{
		Queue: in.Queue, Kind: in.Kind, Tenant: tenant, Since: in.Since, Until: in.Until,
		Step: time.Duration(in.Step) * time.Second,
	}
	if f.Until.IsZero() {
		f.Until = time.Now()
	}
	if f.Since.IsZero() {
		f.Since = f.Until.Add(-time.Hour)
	}
	switch {
	case !f.Since.Before(f.Until):
		return nil, invalidInput.because("", Fault{Parameter: "until", Detail: "is no later than since"})
	case f.Until.Sub(f.Since) > operator.MaxPoints*f.Step:
		return nil, invalidInput.because(
			"", Fault{Parameter: "step", Detail: "is too short for so long a time: there are at most 1 000 points"})
	}
	points, err := s.operator.Series(ctx, f)
	if err != nil {
		return nil, err
	}
	marks, err := s.marks(ctx, f)
	if err != nil {
		return nil, err
	}
	return &seriesOutput{seriesOf(f, points, marks)}, nil
}

// marks returns the marks of a series. Those of all tenants are shared by all callers.
func (s *server) marks(ctx context.Context, f operator.SeriesFilter) ([]operator.Mark, error) {
	if f.Tenant.IsZero() && time.Since(f.Since) < watch.MarksSince {
		return s.watch.Marks.Look(ctx, f)
	}
	return s.operator.Marks(ctx, f)
}

func seriesOf(f operator.SeriesFilter, points []operator.Point, marks []operator.Mark) Series {
	v := Series{
		Since: utc(f.Since), StepSeconds: int(f.Step / time.Second), Points: make([]SeriesPoint, len(points)),
		Marks: make([]SeriesMark, len(marks)),
	}
	for i, p := range points {
		v.Points[i] = SeriesPoint{
			At: utc(p.At), MeasuredSeconds: p.Measured.Seconds(), Waiting: p.Waiting, Running: p.Running,
			DeadLetters: p.DeadLetters,
			Enqueued:    p.Enqueued, Succeeded: p.Succeeded, Unsuccessful: p.Unsuccessful, Failed: p.Failed,
			WaitP50Seconds: p.WaitP50.Seconds(), WaitP99Seconds: p.WaitP99.Seconds(),
		}
	}
	for i, m := range marks {
		v.Marks[i] = SeriesMark{At: utc(m.At), Build: m.Build}
		if a := m.Act; a != nil {
			v.Marks[i] = SeriesMark{
				At: utc(m.At), Actor: a.Actor, Act: a.Act, Queue: a.Queue, Target: a.Target,
				Reason: a.Reason, RequestID: a.RequestID, Acts: a.Number,
			}
		}
	}
	return v
}
