package api

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Why lists why a job does not run.
type Why struct {
	ID      string    `json:"id" format:"uuid"`
	Status  string    `json:"status"`
	AsOf    time.Time `json:"asOf"`
	Reasons []Reason  `json:"reasons" nullable:"false" doc:"The first is the decisive one; the others would apply without it"`
}

// Reason is a reason for which a job does not run, with its evidence and remedy.
type Reason struct {
	Code         string       `json:"code" doc:"Code of the reason; docs/operate/operations.md lists them" example:"queue_paused"`
	Sentence     string       `json:"sentence"`
	Since        time.Time    `json:"since,omitzero"`
	Until        time.Time    `json:"until,omitzero" doc:"When the reason ends without an act, if known"`
	Job          string       `json:"job,omitempty" format:"uuid" doc:"Another job: the running one, the dead letter, or the head of the line"`
	JobStatus    string       `json:"jobStatus,omitempty"`
	Key          string       `json:"key,omitempty"`
	Worker       string       `json:"worker,omitempty" doc:"Holder of the lease, of this job or of the other one"`
	Workers      []SeenWorker `json:"workers,omitempty" doc:"Dispatchers that worked the queue or had a handler for the kind, the most recent first"`
	By           string       `json:"by,omitempty" doc:"Who paused the queue"`
	Because      string       `json:"because,omitempty" doc:"The reason given for the pause"`
	Running      int64        `json:"running,omitempty" doc:"Jobs running"`
	Limit        int64        `json:"limit,omitempty" doc:"Limit of jobs at once"`
	Rate         *Rate        `json:"rate,omitempty"`
	Ahead        int64        `json:"ahead,omitempty" doc:"Jobs before it; 10 000 means that many or more"`
	PerSecond    float64      `json:"perSecond,omitempty" doc:"Jobs of its tenant and queue that recently ended per second"`
	Attempt      int          `json:"attempt,omitempty"`
	ErrorCode    string       `json:"errorCode,omitempty"`
	ErrorMessage string       `json:"errorMessage,omitempty"`
	Act          *WhyAct      `json:"act,omitempty" doc:"The remedy; omitted if the remedy is to wait, or no command provides it"`
}

// SeenWorker is a dispatcher named in a reason.
type SeenWorker struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	SeenAt  time.Time `json:"seenAt"`
	Present bool      `json:"present"`
}

// WhyAct is a remedy.
type WhyAct struct {
	Command string `json:"command" doc:"The remedy as a command line" example:"posthaste queues resume mail"`
	Method  string `json:"method" doc:"Method of the remedy as a request to this API" example:"POST"`
	Path    string `json:"path" example:"/queues/mail/resume"`
}

type whyOutput struct{ Body Why }

func (s *server) whyJob(ctx context.Context, in *jobInput) (*whyOutput, error) {
	job, err := s.find(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	e, err := s.operator.Explain(ctx, job.ID)
	if err != nil {
		return nil, err
	}
	out := &whyOutput{Body: Why{
		ID: e.ID.String(), Status: string(e.Status), AsOf: utc(e.AsOf),
		Reasons: make([]Reason, len(e.Reasons)),
	}}
	for i, r := range e.Reasons {
		out.Body.Reasons[i] = reasonOf(r)
	}
	return out, nil
}

func reasonOf(r operator.Reason) Reason {
	v := Reason{
		Code: string(r.Code), Sentence: r.Sentence, Since: utc(r.Since), Until: utc(r.Until), Job: textOfID(r.Job),
		JobStatus: string(r.JobStatus), Key: r.Key,
		Worker: r.Worker, By: r.By, Because: r.Because, Running: r.Running, Limit: r.Limit, Ahead: r.Ahead,
		PerSecond: r.PerSecond,
		Attempt:   r.Attempt, ErrorCode: r.ErrorCode, ErrorMessage: r.ErrorMessage,
	}
	for _, w := range r.Workers {
		v.Workers = append(v.Workers, SeenWorker{w.Name, w.Version, utc(w.SeenAt), !w.Missing})
	}
	if r.Rate.Starts > 0 {
		v.Rate = &Rate{Starts: r.Rate.Starts, IntervalSeconds: r.Rate.Interval.Seconds()}
	}
	v.Act = actOf(r.Act)
	return v
}

// actOf returns nil for no act.
func actOf(a operator.Act) *WhyAct {
	if a.Command == "" {
		return nil
	}
	return &WhyAct{a.Command, a.Method, a.Path}
}

// textOfID returns "" for the zero ID.
func textOfID(id outbox.ID) string {
	if id.IsZero() {
		return ""
	}
	return id.String()
}
