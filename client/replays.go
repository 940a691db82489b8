package client

import (
	"context"
	"time"
)

// NewReplay selects events that a sink is to publish again.
type NewReplay struct {
	Tenant        string    `json:"-"`                // for tokens of all tenants; others replay their own events
	Since         time.Time `json:"since"`            // stored from then on
	Until         time.Time `json:"until,omitzero"`   // stored before; zero means now
	Topics        []string  `json:"topics,omitempty"` // each a topic, or a pattern ending in .*, or *; empty means any
	Key           string    `json:"key,omitempty"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty"` // 0 means no limit
	Again         bool      `json:"again,omitempty"`         // under new ids, which nobody takes for repeats
	StopLive      bool      `json:"stopLive,omitempty"`      // publish nothing new meanwhile; for tokens of all tenants
	DryRun        bool      `json:"dryRun,omitempty"`        // only report what it would publish
	Reason        string    `json:"reason,omitempty"`        // for the audit
}

// ReplayAnswer is a replay that was started, or what one would publish.
type ReplayAnswer struct {
	Events          int64     `json:"events"`            // that match
	OldestAt        time.Time `json:"oldestAt,omitzero"` // when the first of them was stored
	NewestAt        time.Time `json:"newestAt,omitzero"`
	Until           time.Time `json:"until"`
	TakesSeconds    float64   `json:"takesSeconds,omitempty"`    // at the rate
	Dropped         int64     `json:"dropped,omitempty"`         // about how many the broker would drop as repeats
	RememberSeconds float64   `json:"rememberSeconds,omitempty"` // for how long it remembers ids; 0 if unknown
	Replay          *Replay   `json:"replay,omitempty"`          // nil after a dry run
}

// Replay is a replay of events by a sink.
type Replay struct {
	ID            string    `json:"id"` // in the header posthaste-replay of its messages
	Sink          string    `json:"sink"`
	State         string    `json:"state"`            // running, finished or stopped
	Tenant        string    `json:"tenant,omitempty"` // owner of the events; "" means all tenants
	Since         time.Time `json:"since"`
	Until         time.Time `json:"until"`
	Topics        []string  `json:"topics,omitempty"`
	Key           string    `json:"key,omitempty"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty"`
	Again         bool      `json:"again,omitempty"`
	StopLive      bool      `json:"stopLive,omitempty"`
	Events        int64     `json:"events"`             // that matched at the beginning
	Published     int64     `json:"published"`          // so far
	Refused       int64     `json:"refused"`            // by the sink, and skipped
	Repeated      int64     `json:"repeated"`           // of those published: dropped by the broker as repeats
	WaitsFor      string    `json:"waitsFor,omitempty"` // why it does not go on
	Actor         string    `json:"actor"`
	Reason        string    `json:"reason,omitempty"`
	StartedAt     time.Time `json:"startedAt"`
	EndedAt       time.Time `json:"endedAt,omitzero"`
}

type replaysAnswer struct {
	Replays []Replay `json:"replays"`
}

// StartReplay makes a sink publish events again, alongside new ones. A token of one tenant replays its own events.
func (c *Client) StartReplay(ctx context.Context, sink string, which NewReplay) (ReplayAnswer, error) {
	r := post("/sinks", which)
	r.query = tenant(which.Tenant)
	return ask[ReplayAnswer](ctx, c, r.segment("sink", sink, "/replays"))
}

// Replays lists the replays of a sink, newest first. A token of all tenants may select a tenant; others see their own.
func (c *Client) Replays(ctx context.Context, sink, ofTenant string) ([]Replay, error) {
	answer, err := ask[replaysAnswer](ctx, c, get("/sinks", tenant(ofTenant)).segment("sink", sink, "/replays"))
	return answer.Replays, err
}

// StopReplay ends a replay, or returns a [*Problem] with [CodeReplayNotFound] if the sink has none with the id. The
// context may have a reason; see [WithReason].
func (c *Client) StopReplay(ctx context.Context, sink, id string) (Replay, error) {
	return ask[Replay](ctx, c, post("/sinks", nil).because(ctx).segment("sink", sink, "/replays").segment("replay", id,
		"/stop"))
}

// NewHistoryReplay selects jobs of the history to enqueue again.
type NewHistoryReplay struct {
	Tenant        string    `json:"-"` // for tokens of all tenants; others replay their own jobs
	Kind          string    `json:"kind"`
	Since         time.Time `json:"since"`          // succeeded from then on
	Until         time.Time `json:"until,omitzero"` // succeeded before; zero means now
	Key           string    `json:"key,omitempty"`
	RatePerSecond float64   `json:"ratePerSecond,omitempty"` // how many become due; 0 means all at once
	Again         bool      `json:"again,omitempty"`         // new ids for messages of jobs that a sink publishes
	DryRun        bool      `json:"dryRun,omitempty"`        // only report what it would enqueue
	Reason        string    `json:"reason,omitempty"`        // for the audit
}

// HistoryReplay describes jobs of the history that were enqueued again, or would be.
type HistoryReplay struct {
	Jobs         int64     `json:"jobs"`              // that match
	Bytes        int64     `json:"bytes"`             // of their payloads
	OldestAt     time.Time `json:"oldestAt,omitzero"` // when the first of them succeeded
	NewestAt     time.Time `json:"newestAt,omitzero"`
	Until        time.Time `json:"until"`
	TakesSeconds float64   `json:"takesSeconds,omitempty"` // until the last is due, at the rate
	Replay       string    `json:"replay,omitempty"`       // the copies' posthaste-replay header; "" after a dry run
}

// ReplayHistory enqueues jobs of the history again, all of them or none. A token of one tenant replays its own.
func (c *Client) ReplayHistory(ctx context.Context, which NewHistoryReplay) (HistoryReplay, error) {
	r := post("/jobs/replay", which)
	r.query = tenant(which.Tenant)
	return ask[HistoryReplay](ctx, c, r)
}
