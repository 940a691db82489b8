package client

import (
	"context"
	"time"
)

// Finding is something that is wrong now. Fields that do not apply are zero.
type Finding struct {
	Kind        string    `json:"kind"`
	Severity    string    `json:"severity"` // problem (jobs do not run, or will not) or warning
	Sentence    string    `json:"sentence"`
	Since       time.Time `json:"since,omitzero"`
	Tenant      string    `json:"tenant,omitempty"`
	Queue       string    `json:"queue,omitempty"`
	JobKind     string    `json:"jobKind,omitempty"`
	Key         string    `json:"key,omitempty"`
	Fingerprint string    `json:"errorFingerprint,omitempty"`
	ErrorCode   string    `json:"errorCode,omitempty"`
	Message     string    `json:"message,omitempty"` // of the error
	Job         string    `json:"job,omitempty"`     // an example, or the dead letter for which a key is parked
	Schedule    string    `json:"schedule,omitempty"`
	Worker      string    `json:"worker,omitempty"`
	Jobs        int64     `json:"jobs,omitempty"`
	Do          string    `json:"do,omitempty"`  // the remedy in words
	Act         *WhyAct   `json:"act,omitempty"` // the remedy as a command
}

// Findings are the problems at an instant, the worst first.
type Findings struct {
	AsOf     time.Time `json:"asOf"`
	Problems []Finding `json:"problems"`
}

// Overview summarizes how much work there is and how it goes.
type Overview struct {
	AsOf          time.Time       `json:"asOf"`
	Estimated     bool            `json:"estimated,omitempty"`     // waiting jobs were counted on a sample of the table
	OldestUnknown bool            `json:"oldestUnknown,omitempty"` // the oldest due jobs have not been read
	Queues        []OverviewQueue `json:"queues"`
	Enqueued      int64           `json:"enqueued,omitempty"` // only ever grows, like Closed; for all tenants only
	Closed        int64           `json:"closed,omitempty"`
	Recent        []Recent        `json:"recent"` // all kinds together first; for all tenants only
}

// OverviewQueue counts the jobs in a queue.
type OverviewQueue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	OldestDue   time.Time        `json:"oldestDue,omitzero"` // for all tenants only
	Jobs        map[string]int64 `json:"jobs"`               // open jobs by status
}

// Recent describes the jobs of a kind that closed in the last minutes.
type Recent struct {
	Kind           string    `json:"kind,omitempty"` // "" means all kinds
	Jobs           int64     `json:"jobs"`
	Unsuccessful   int64     `json:"unsuccessful"`
	Since          time.Time `json:"since"` // when the first of them closed
	WaitP50Seconds float64   `json:"waitP50Seconds"`
	WaitP99Seconds float64   `json:"waitP99Seconds"`
	RunP50Seconds  float64   `json:"runP50Seconds"`
	RunP99Seconds  float64   `json:"runP99Seconds"`
}

// Me describes what a token may do.
type Me struct {
	Name         string   `json:"name"`
	Tenant       string   `json:"tenant"` // owner of the jobs that it enqueues
	AllTenants   bool     `json:"allTenants"`
	Capabilities []string `json:"capabilities"`
}

// Answer is the answer of posthaste doctor to one of its questions.
type Answer struct {
	Question string `json:"question"`
	Severity string `json:"severity"` // ok, warning or problem
	What     string `json:"what"`
	Do       string `json:"do,omitempty"`
}

// Examination describes the installation as the server reaches it.
type Examination struct {
	AsOf    time.Time `json:"asOf"`
	Answers []Answer  `json:"answers"`
}

// Problems lists what is wrong now. A token of all tenants may select a tenant.
func (c *Client) Problems(ctx context.Context, ofTenant string) (Findings, error) {
	return ask[Findings](ctx, c, get("/problems", tenant(ofTenant)))
}

// Overview returns an overview. A token of all tenants may select a tenant.
func (c *Client) Overview(ctx context.Context, ofTenant string) (Overview, error) {
	return ask[Overview](ctx, c, get("/overview", tenant(ofTenant)))
}

// Me returns what the client's token may do.
func (c *Client) Me(ctx context.Context) (Me, error) { return ask[Me](ctx, c, get("/me", nil)) }

// Doctor examines the installation, at most once a minute. It requires a token of all tenants.
func (c *Client) Doctor(ctx context.Context) (Examination, error) {
	return ask[Examination](ctx, c, get("/doctor", nil))
}
