package client

import (
	"context"
	"encoding/json"
	"net/url"
	"time"
)

// Progress is how far a job is, or was when it ended.
type Progress struct {
	ID         string    `json:"id"`
	Status     string    `json:"status"`
	Current    int64     `json:"current"`         // in the handler's unit
	Total      int64     `json:"total,omitempty"` // 0: not known
	Message    string    `json:"message,omitempty"`
	ReportedAt time.Time `json:"reportedAt,omitzero"` // zero: the job has reported none
}

// LogLine is a line of a job's own log.
type LogLine struct {
	Line    int64     `json:"line"` // from 1 in each attempt; a gap is what is not kept
	At      time.Time `json:"at"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
}

// Log is what there is of a job's own log after some place.
type Log struct {
	Lines []LogLine `json:"lines"`          // oldest first
	Next  string    `json:"next,omitempty"` // the place after them, for the lines to come
}

// Step is a step that a job has finished.
type Step struct {
	Name        string          `json:"name"`
	Epoch       int64           `json:"epoch"` // of the attempt that ran it
	FinishedAt  time.Time       `json:"finishedAt"`
	TookSeconds float64         `json:"tookSeconds"`
	Result      json.RawMessage `json:"result,omitempty"` // for payload.read only
}

type stepsAnswer struct {
	Steps []Step `json:"steps"`
}

// Progress tells how far a job is.
func (c *Client) Progress(ctx context.Context, id string) (Progress, error) {
	return ask[Progress](ctx, c, get("/jobs", nil).segment("job's id", id, "/progress"))
}

// Log returns the lines of a job's own log after a place: "" is from the first, the
// Next of an earlier Log from there on.
func (c *Client) Log(ctx context.Context, id, after string) (Log, error) {
	q := url.Values{}
	set(q, "after", after)
	return ask[Log](ctx, c, get("/jobs", q).segment("job's id", id, "/logs"))
}

// Steps lists the steps that a job has finished, oldest first.
func (c *Client) Steps(ctx context.Context, id string) ([]Step, error) {
	answer, err := ask[stepsAnswer](ctx, c, get("/jobs", nil).segment("job's id", id, "/steps"))
	return answer.Steps, err
}
