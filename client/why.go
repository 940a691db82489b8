package client

import (
	"context"
	"time"
)

// Why lists why a job does not run.
type Why struct {
	ID      string    `json:"id"`
	Status  string    `json:"status"`
	AsOf    time.Time `json:"asOf"`
	Reasons []Reason  `json:"reasons"` // the first is the one that applies; the others would if it were gone
}

// Reason is a reason for which a job does not run, with its evidence and remedy. Fields that do not apply are zero.
type Reason struct {
	Code         string       `json:"code"`
	Sentence     string       `json:"sentence"`
	Since        time.Time    `json:"since,omitzero"`
	Until        time.Time    `json:"until,omitzero"` // when it ends without intervention, if known
	Job          string       `json:"job,omitempty"`  // the other job involved
	JobStatus    string       `json:"jobStatus,omitempty"`
	Key          string       `json:"key,omitempty"`
	Worker       string       `json:"worker,omitempty"`
	Workers      []SeenWorker `json:"workers,omitempty"`
	By           string       `json:"by,omitempty"` // who paused the queue
	Because      string       `json:"because,omitempty"`
	Running      int64        `json:"running,omitempty"`
	Limit        int64        `json:"limit,omitempty"`
	Rate         *Rate        `json:"rate,omitempty"`
	Ahead        int64        `json:"ahead,omitempty"` // 10 000 means at least that many
	PerSecond    float64      `json:"perSecond,omitempty"`
	Attempt      int          `json:"attempt,omitempty"`
	ErrorCode    string       `json:"errorCode,omitempty"`
	ErrorMessage string       `json:"errorMessage,omitempty"`
	Act          *WhyAct      `json:"act,omitempty"` // nil if waiting is the only remedy, or none is a command
}

// SeenWorker is a dispatcher named in a reason.
type SeenWorker struct {
	Name    string    `json:"name"`
	Version string    `json:"version"`
	SeenAt  time.Time `json:"seenAt"`
	Present bool      `json:"present"`
}

// WhyAct is a remedy, as a command line and as the equivalent request.
type WhyAct struct {
	Command string `json:"command"`
	Method  string `json:"method"`
	Path    string `json:"path"`
}

// Why returns why a job does not run.
func (c *Client) Why(ctx context.Context, id string) (Why, error) {
	return ask[Why](ctx, c, get("/jobs", nil).segment("job's id", id, "/why"))
}
