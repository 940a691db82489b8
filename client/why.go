package client

import (
	"context"
	"time"
)

// Why says why a job does not run.
type Why struct {
	ID      string    `json:"id"`
	Status  string    `json:"status"`
	AsOf    time.Time `json:"asOf"`
	Reasons []Reason  `json:"reasons"` // the first is the one that holds, the others would when it is gone
}

// Reason is why a job does not run, with what shows it and what helps. What does not apply is zero.
type Reason struct {
	Code         string       `json:"code"`
	Sentence     string       `json:"sentence"`
	Since        time.Time    `json:"since,omitzero"`
	Until        time.Time    `json:"until,omitzero"` // when it ends by itself, as far as is known
	Job          string       `json:"job,omitempty"`  // the other job that it is about
	JobStatus    string       `json:"jobStatus,omitempty"`
	Key          string       `json:"key,omitempty"`
	Worker       string       `json:"worker,omitempty"`
	Workers      []SeenWorker `json:"workers,omitempty"`
	By           string       `json:"by,omitempty"` // who paused the queue
	Because      string       `json:"because,omitempty"`
	Running      int64        `json:"running,omitempty"`
	Limit        int64        `json:"limit,omitempty"`
	Rate         *Rate        `json:"rate,omitempty"`
	Ahead        int64        `json:"ahead,omitempty"` // 10 000 is as many or more
	PerSecond    float64      `json:"perSecond,omitempty"`
	Attempt      int          `json:"attempt,omitempty"`
	ErrorCode    string       `json:"errorCode,omitempty"`
	ErrorMessage string       `json:"errorMessage,omitempty"`
	Act          *WhyAct      `json:"act,omitempty"` // nil: to wait, or nothing that a command does
}

// SeenWorker is a dispatcher as a reason names it.
type SeenWorker struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	SeenAt  time.Time `json:"seenAt"`
	Present bool      `json:"present"`
}

// WhyAct is what helps: the same as a command line and as a request.
type WhyAct struct {
	Command string `json:"command"`
	Method  string `json:"method"`
	Path    string `json:"path"`
}

// Why tells why a job does not run.
func (c *Client) Why(ctx context.Context, id string) (Why, error) {
	return ask[Why](ctx, c, get("/jobs", nil).segment("job's id", id, "/why"))
}
