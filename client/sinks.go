package client

import (
	"context"
	"net/url"
	"time"
)

// Sink is how far events are published to a broker.
type Sink struct {
	Sink        string    `json:"sink"`
	State       string    `json:"state"`           // publishing, away, stuck, paused, or waiting for a process
	Owner       string    `json:"owner,omitempty"` // the process that publishes
	Published   int64     `json:"published"`       // messages so far; after a crash some count twice
	Lag         int64     `json:"lag"`             // positions up to the end of the log; some have no event
	Holes       int64     `json:"holes"`           // positions that are passed by and may yet have an event
	Held        int64     `json:"held"`            // messages that are jobs: refused, or behind one of the same key
	HeldKeys    int64     `json:"heldKeys"`        // how many keys these have
	OldestAt    time.Time `json:"oldestAt,omitzero"`
	MovedAt     time.Time `json:"movedAt,omitzero"` // when messages were published last
	PausedSince time.Time `json:"pausedSince,omitzero"`
	Away        *Away     `json:"away,omitempty"` // why it stands still; nil unless it does
}

// Away is why a sink stands still.
type Away struct {
	Since   time.Time `json:"since"`
	Code    string    `json:"code"`    // like relay_unavailable
	Message string    `json:"message"` // in the words of the broker's client
}

type sinksAnswer struct {
	Sinks []Sink `json:"sinks"`
}

// SkippedEvent is an event that a sink is not to publish.
type SkippedEvent struct {
	Event  string `json:"event"`
	Reason string `json:"reason,omitempty"` // for the audit
}

// Sinks lists the sinks by name. This and all about sinks takes a token of all tenants.
func (c *Client) Sinks(ctx context.Context) ([]Sink, error) {
	answer, err := ask[sinksAnswer](ctx, c, get("/sinks", nil))
	return answer.Sinks, err
}

// Sink returns one sink; a [*Problem] with [CodeSinkNotFound] if there is none of the name.
func (c *Client) Sink(ctx context.Context, name string) (Sink, error) {
	return ask[Sink](ctx, c, get("/sinks", nil).segment("sink", name, ""))
}

// PauseSink has a sink publish nothing, in all processes, from two seconds later on at
// latest. The context may have a reason; see [WithReason].
func (c *Client) PauseSink(ctx context.Context, name string) (Sink, error) {
	return ask[Sink](ctx, c, onSink(ctx, name, "/pause"))
}

// ResumeSink lets a sink go on. The context may have a reason; see [WithReason].
func (c *Client) ResumeSink(ctx context.Context, name string) (Sink, error) {
	return ask[Sink](ctx, c, onSink(ctx, name, "/resume"))
}

// SkipEvent has a sink never publish an event that waits for it; a [*Problem] with
// [CodeEventNotWaiting] if it does not.
func (c *Client) SkipEvent(ctx context.Context, sink string, which SkippedEvent) (Sink, error) {
	return ask[Sink](ctx, c, post("/sinks", which).segment("sink", sink, "/skip"))
}

func onSink(ctx context.Context, name, act string) request {
	r := post("/sinks", nil)
	r.query = url.Values{}
	reason, _ := ctx.Value(reasonKey{}).(string)
	set(r.query, "reason", reason)
	return r.segment("sink", name, act)
}
