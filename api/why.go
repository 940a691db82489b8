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
	Reasons []Reason  `json:"reasons" nullable:"false" doc:"The first is the one that holds, the others would when it is gone"`
}

// Reason is a reason for which a job does not run, with its evidence and remedy.
type Reason struct {
	Code         string       `json:"code" doc:"In docs/reference/api.md" example:"queue_paused"`
	Sentence     string       `json:"sentence"`
	Since        time.Time    `json:"since,omitzero"`
	Until        time.Time    `json:"until,omitzero" doc:"When it ends by itself, as far as is known"`
	Job          string       `json:"job,omitempty" format:"uuid" doc:"Another job that it is about: the one that runs, is a dead letter, or is the head of the line"`
	JobStatus    string       `json:"jobStatus,omitempty"`
	Key          string       `json:"key,omitempty"`
	Worker       string       `json:"worker,omitempty" doc:"Who holds the lease, of the job or of the other one"`
	Workers      []SeenWorker `json:"workers,omitempty" doc:"Dispatchers that worked the queue, or had a handler for the kind; those seen last first"`
	By           string       `json:"by,omitempty" doc:"Who paused the queue"`
	Because      string       `json:"because,omitempty" doc:"And the reason given"`
	Running      int64        `json:"running,omitempty" doc:"Jobs at once"`
	Limit        int64        `json:"limit,omitempty" doc:"Of them"`
	Rate         *Rate        `json:"rate,omitempty"`
	Ahead        int64        `json:"ahead,omitempty" doc:"Jobs before it; 10 000 is as many or more"`
	PerSecond    float64      `json:"perSecond,omitempty" doc:"How many jobs of its tenant's queue have ended a second of late"`
	Attempt      int          `json:"attempt,omitempty"`
	ErrorCode    string       `json:"errorCode,omitempty"`
	ErrorMessage string       `json:"errorMessage,omitempty"`
	Act          *WhyAct      `json:"act,omitempty" doc:"What helps; left out: to wait, or nothing that a command does"`
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
	Command string `json:"command" doc:"As a command line" example:"posthaste queues resume mail"`
	Method  string `json:"method" doc:"And as a request to this API" example:"POST"`
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
	out := &whyOutput{Body: Why{ID: e.ID.String(), Status: string(e.Status), AsOf: utc(e.AsOf), Reasons: make([]Reason, len(e.Reasons))}}
	for i, r := range e.Reasons {
		out.Body.Reasons[i] = reasonOf(r)
	}
	return out, nil
}

func reasonOf(r operator.Reason) Reason {
	v := Reason{
		Code: string(r.Code), Sentence: r.Sentence, Since: utc(r.Since), Until: utc(r.Until), Job: textOfID(r.Job), JobStatus: string(r.JobStatus), Key: r.Key,
		Worker: r.Worker, By: r.By, Because: r.Because, Running: r.Running, Limit: r.Limit, Ahead: r.Ahead, PerSecond: r.PerSecond,
		Attempt: r.Attempt, ErrorCode: r.ErrorCode, ErrorMessage: r.ErrorMessage,
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
