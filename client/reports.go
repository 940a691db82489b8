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
	Total      int64     `json:"total,omitempty"` // 0 if unknown
	Message    string    `json:"message,omitempty"`
	ReportedAt time.Time `json:"reportedAt,omitzero"` // zero if the job has reported none
}

// LogLine is a line of a job's own log.
type LogLine struct {
	Line    int64     `json:"line"` // from 1 in each attempt; a gap is a line that was not kept
	At      time.Time `json:"at"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
}

// Log is the part of a job's own log after some place.
type Log struct {
	Lines []LogLine `json:"lines"`          // oldest first
	Next  string    `json:"next,omitempty"` // the cursor after them, for later lines
}

// Step is a finished step of a job.
type Step struct {
	Name        string          `json:"name"`
	Epoch       int64           `json:"epoch"` // of the attempt that ran it
	FinishedAt  time.Time       `json:"finishedAt"`
	TookSeconds float64         `json:"tookSeconds"`
	Result      json.RawMessage `json:"result,omitempty"` // requires payload.read
}

type stepsAnswer struct {
	Steps []Step `json:"steps"`
}

// Progress returns how far a job is.
func (c *Client) Progress(ctx context.Context, id string) (Progress, error) {
	return ask[Progress](ctx, c, get("/jobs", nil).segment("job's id", id, "/progress"))
}

// Log returns the lines of a job's own log after a cursor: "" begins with the first, and the Next of an earlier Log
// continues there.
func (c *Client) Log(ctx context.Context, id, cursor string) (Log, error) {
	q := url.Values{}
	set(q, "cursor", cursor)
	return ask[Log](ctx, c, get("/jobs", q).segment("job's id", id, "/logs"))
}

// Steps lists the finished steps of a job, oldest first.
func (c *Client) Steps(ctx context.Context, id string) ([]Step, error) {
	answer, err := ask[stepsAnswer](ctx, c, get("/jobs", nil).segment("job's id", id, "/steps"))
	return answer.Steps, err
}
