package client

import (
	"context"
	"iter"
	"net/url"
	"time"
)

// Sink is the progress of publishing events to a broker.
type Sink struct {
	Sink        string    `json:"sink"`
	State       string    `json:"state"`           // publishing, away, stuck, paused, or waiting for a process
	Owner       string    `json:"owner,omitempty"` // the process that publishes
	Published   int64     `json:"published"`       // messages so far; after a crash some count twice
	Lag         int64     `json:"lag"`             // positions up to the end of the log; some have no event
	Holes       int64     `json:"holes"`           // positions that were passed and may still get an event
	Held        int64     `json:"held"`            // messages that are jobs: refused, or later ones of the same key
	HeldKeys    int64     `json:"heldKeys"`        // how many keys these have
	OldestAt    time.Time `json:"oldestAt,omitzero"`
	MovedAt     time.Time `json:"movedAt,omitzero"` // when messages were last published
	PausedSince time.Time `json:"pausedSince,omitzero"`
	Away        *Away     `json:"away,omitempty"` // why it is stopped; nil unless it is
}

// Away is the reason for which a sink is stopped.
type Away struct {
	Since   time.Time `json:"since"`
	Code    string    `json:"code"`    // like relay_unavailable
	Message string    `json:"message"` // in the words of the broker's client
}

// HeldMessage is a message that a sink has refused, or a later one of the same key. It is a job until the broker has it
// or somebody has dismissed it.
type HeldMessage struct {
	Event    string    `json:"event,omitempty"` // the ID by which consumers drop repeats
	Topic    string    `json:"topic,omitempty"`
	Position int64     `json:"position"` // in the log
	At       time.Time `json:"at,omitzero"`
	Job      Job       `json:"job"`
}

// HeldPage is a page of the held messages of a sink.
type HeldPage struct {
	Messages []HeldMessage `json:"messages"`       // in the order of the log
	Next     string        `json:"next,omitempty"` // cursor of the next page; "" if there is none
}

type sinksAnswer struct {
	Sinks []Sink `json:"sinks"`
}

// SkippedEvent is an event that a sink must not publish.
type SkippedEvent struct {
	Event  string `json:"event"`
	Reason string `json:"reason,omitempty"` // for the audit
}

// Sinks lists the sinks by name. Like everything about sinks, it requires a token of all tenants.
func (c *Client) Sinks(ctx context.Context) ([]Sink, error) {
	answer, err := ask[sinksAnswer](ctx, c, get("/sinks", nil))
	return answer.Sinks, err
}

// Sink returns one sink, or a [*Problem] with [CodeSinkNotFound] if there is none of that name.
func (c *Client) Sink(ctx context.Context, name string) (Sink, error) {
	return ask[Sink](ctx, c, get("/sinks", nil).segment("sink", name, ""))
}

// PauseSink makes a sink publish nothing, in all processes, within two seconds. The context may have a reason; see
// [WithReason].
func (c *Client) PauseSink(ctx context.Context, name string) (Sink, error) {
	return ask[Sink](ctx, c, onSink(ctx, name, "/pause"))
}

// ResumeSink lets a sink continue. The context may have a reason; see [WithReason].
func (c *Client) ResumeSink(ctx context.Context, name string) (Sink, error) {
	return ask[Sink](ctx, c, onSink(ctx, name, "/resume"))
}

// SkipEvent makes a sink never publish an event that waits for it, or returns a [*Problem] with [CodeEventNotWaiting]
// if it does not wait.
func (c *Client) SkipEvent(ctx context.Context, sink string, which SkippedEvent) (Sink, error) {
	return ask[Sink](ctx, c, post("/sinks", which).segment("sink", sink, "/skip"))
}

// HeldPage lists messages of a sink that are jobs. A limit of 0 means 50, at most 200; the cursor "" begins with the
// first page.
func (c *Client) HeldPage(ctx context.Context, sink string, limit int, cursor string) (HeldPage, error) {
	return ask[HeldPage](ctx, c, get("/sinks", PageRequest{Limit: limit, Cursor: cursor}.add(url.Values{})).segment("sink",
		sink, "/held"))
}

// Held yields the messages of a sink that are jobs, page after page, and finally an error if there is one.
func (c *Client) Held(ctx context.Context, sink string) iter.Seq2[HeldMessage, error] {
	return pages(func(cursor string) ([]HeldMessage, string, error) {
		page, err := c.HeldPage(ctx, sink, 200, cursor)
		return page.Messages, page.Next, err
	})
}

func onSink(ctx context.Context, name, act string) request {
	r := post("/sinks", nil).because(ctx)
	return r.segment("sink", name, act)
}
