package client

import (
	"context"
	"time"
)

// Finding is something that is wrong now. What does not apply is zero.
type Finding struct {
	Kind        string    `json:"kind"`
	Severity    string    `json:"severity"` // problem: jobs do not run, or will not; or warning
	Sentence    string    `json:"sentence"`
	Since       time.Time `json:"since,omitzero"`
	Tenant      string    `json:"tenant,omitempty"`
	Queue       string    `json:"queue,omitempty"`
	JobKind     string    `json:"jobKind,omitempty"`
	Key         string    `json:"key,omitempty"`
	Fingerprint string    `json:"fingerprint,omitempty"`
	ErrorCode   string    `json:"errorCode,omitempty"`
	Message     string    `json:"message,omitempty"` // of the error
	Job         string    `json:"job,omitempty"`     // an example, or the dead letter because of which a key is parked
	Schedule    string    `json:"schedule,omitempty"`
	Worker      string    `json:"worker,omitempty"`
	Jobs        int64     `json:"jobs,omitempty"`
	Do          string    `json:"do,omitempty"`  // what helps, in words
	Act         *WhyAct   `json:"act,omitempty"` // and as a command
}

// Findings are the problems that there were at an instant, the worst first.
type Findings struct {
	AsOf     time.Time `json:"asOf"`
	Problems []Finding `json:"problems"`
}

// Overview is how much there is to do and how it goes.
type Overview struct {
	AsOf      time.Time       `json:"asOf"`
	Estimated bool            `json:"estimated,omitempty"` // what waits was counted on a sample of the table
	Queues    []OverviewQueue `json:"queues"`
	Enqueued  int64           `json:"enqueued,omitempty"` // counts up for ever, as Closed does; for all tenants only
	Closed    int64           `json:"closed,omitempty"`
	Recent    []Recent        `json:"recent"` // all kinds together first; for all tenants only
}

// OverviewQueue is what waits in a queue.
type OverviewQueue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	OldestDue   time.Time        `json:"oldestDue,omitzero"` // for all tenants only
	Jobs        map[string]int64 `json:"jobs"`               // open jobs by status
}

// Recent is how the jobs of a kind that closed in the last minutes went.
type Recent struct {
	Kind           string    `json:"kind,omitempty"` // "" is all of them
	Jobs           int64     `json:"jobs"`
	Unsuccessful   int64     `json:"unsuccessful"`
	Since          time.Time `json:"since"` // when the first of them closed
	WaitP50Seconds float64   `json:"waitP50Seconds"`
	WaitP99Seconds float64   `json:"waitP99Seconds"`
	RunP50Seconds  float64   `json:"runP50Seconds"`
	RunP99Seconds  float64   `json:"runP99Seconds"`
}

// Me is what a token may do.
type Me struct {
	Name         string   `json:"name"`
	Tenant       string   `json:"tenant"` // whose the jobs are that it enqueues
	AllTenants   bool     `json:"allTenants"`
	Capabilities []string `json:"capabilities"`
}

// Answer is what posthaste doctor says to one of its questions.
type Answer struct {
	Question string `json:"question"`
	Severity string `json:"severity"` // ok, warning or problem
	What     string `json:"what"`
	Do       string `json:"do,omitempty"`
}

// Examination is what the server found of the installation as it reaches it.
type Examination struct {
	AsOf    time.Time `json:"asOf"`
	Answers []Answer  `json:"answers"`
}

// Problems lists what is wrong now; a token of all tenants may name one.
func (c *Client) Problems(ctx context.Context, ofTenant string) (Findings, error) {
	return ask[Findings](ctx, c, get("/problems", tenant(ofTenant)))
}

// Overview tells how much there is to do and how it goes; a token of all tenants may name one.
func (c *Client) Overview(ctx context.Context, ofTenant string) (Overview, error) {
	return ask[Overview](ctx, c, get("/overview", tenant(ofTenant)))
}

// Me tells what the client's token may do.
func (c *Client) Me(ctx context.Context) (Me, error) { return ask[Me](ctx, c, get("/me", nil)) }

// Doctor examines the installation, at most once a minute. It takes a token of all tenants.
func (c *Client) Doctor(ctx context.Context) (Examination, error) {
	return ask[Examination](ctx, c, get("/doctor", nil))
}
