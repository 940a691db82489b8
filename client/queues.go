package client

import (
	"context"
	"time"
)

// Queue counts the jobs in a queue and reports whether it is worked.
type Queue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	MaxRunning  int              `json:"maxRunning,omitempty"` // at once, in all processes together; 0 means no limit
	Rate        *Rate            `json:"rate,omitempty"`       // nil means no limit
	Jobs        map[string]int64 `json:"jobs"`                 // open jobs by status
}

// Queues lists all queues with open jobs and those that are paused or limited.
type Queues struct {
	Queues []Queue   `json:"queues"`
	AsOf   time.Time `json:"asOf"` // when they were counted
}

// QueueState reports whether a queue is paused.
type QueueState struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
}

// Rate limits starts: in any span of the interval at most that many jobs start.
type Rate struct {
	Starts          int     `json:"starts"`
	IntervalSeconds float64 `json:"intervalSeconds,omitempty"` // from 0.01 to 31 days
}

// QueueLimits are the limits to set. A nil field changes nothing; 0, or a Rate of 0 starts, lifts the limit.
type QueueLimits struct {
	MaxRunning *int  `json:"maxRunning,omitempty"`
	Rate       *Rate `json:"rate,omitempty"`
}

// LimitedQueue has the limits of a queue.
type LimitedQueue struct {
	Queue      string `json:"queue"`
	MaxRunning int    `json:"maxRunning,omitempty"` // 0 means no limit
	Rate       *Rate  `json:"rate,omitempty"`       // nil means no limit
}

// Stats counts the work to do.
type Stats struct {
	Open         int64            `json:"open"`
	DeadLetters  int64            `json:"deadLetters"`
	Jobs         map[string]int64 `json:"jobs"` // open jobs by status
	PausedQueues int              `json:"pausedQueues"`
	AsOf         time.Time        `json:"asOf"` // when they were counted
}

// Queues counts the open jobs of each queue. A token of all tenants may select a tenant.
func (c *Client) Queues(ctx context.Context, ofTenant string) (Queues, error) {
	return ask[Queues](ctx, c, get("/queues", tenant(ofTenant)))
}

// PauseQueue stops claims of a queue in all processes; running jobs go on.
func (c *Client) PauseQueue(ctx context.Context, queue string) (QueueState, error) {
	return ask[QueueState](ctx, c, post("/queues", nil).because(ctx).segment("queue", queue, "/pause"))
}

// ResumeQueue lets claims of a queue continue.
func (c *Client) ResumeQueue(ctx context.Context, queue string) (QueueState, error) {
	return ask[QueueState](ctx, c, post("/queues", nil).because(ctx).segment("queue", queue, "/resume"))
}

// LimitQueue sets or lifts limits of a queue, in all processes together, from the next claim on, and returns the limits
// in effect afterwards. It requires a token of all tenants.
func (c *Client) LimitQueue(ctx context.Context, queue string, limits QueueLimits) (LimitedQueue, error) {
	return ask[LimitedQueue](ctx, c, post("/queues", limits).because(ctx).segment("queue", queue, "/limits"))
}

// Stats counts all open jobs. A token of all tenants may select a tenant.
func (c *Client) Stats(ctx context.Context, ofTenant string) (Stats, error) {
	return ask[Stats](ctx, c, get("/stats", tenant(ofTenant)))
}

// Worker is a dispatcher as it last reported itself, which it does every minute.
type Worker struct {
	Name      string         `json:"name"` // as in the leases
	Version   string         `json:"version"`
	Present   bool           `json:"present"`   // false if it was not seen for longer than two reports take
	Queues    map[string]int `json:"queues"`    // with how many jobs of each it runs at once
	Kinds     []string       `json:"kinds"`     // with a handler
	Listening bool           `json:"listening"` // whether notifications reach it; otherwise it polls
	Running   int64          `json:"running"`
	StartedAt time.Time      `json:"startedAt"`
	SeenAt    time.Time      `json:"seenAt"`
}

type workersAnswer struct {
	Workers []Worker `json:"workers"`
}

// Workers lists the dispatchers by name. It requires a token of all tenants.
func (c *Client) Workers(ctx context.Context) ([]Worker, error) {
	answer, err := ask[workersAnswer](ctx, c, get("/workers", nil))
	return answer.Workers, err
}
