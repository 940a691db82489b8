package client

import (
	"context"
	"encoding/json"
	"time"
)

// LettersAct says what to do to which dead letters. One request does a part of it; the
// Next of its answer goes on.
type LettersAct struct {
	Filter DeadLetterFilter `json:"filter"`           // at least one condition; both statuses are all
	DryRun bool             `json:"dryRun,omitempty"` // only count them
	Reason string           `json:"reason,omitempty"` // for the audit
	Cursor string           `json:"cursor,omitempty"` // Next of the answer before, with the same filter
}

// ReplayAct is an act with a rate.
type ReplayAct struct {
	LettersAct
	RatePerSecond float64 `json:"ratePerSecond,omitempty"` // 0 is without a limit
}

// LettersActed is how far an act on many dead letters has come.
type LettersActed struct {
	Matched      int64   `json:"matched"` // dead letters that the filter matches; not counted again with a cursor
	Done         int64   `json:"done"`    // of this request
	Passed       int64   `json:"passed"`  // left alone: something else happened to them meanwhile
	Next         string  `json:"next,omitempty"`
	AfterSeconds float64 `json:"afterSeconds,omitempty"` // ask again after this time, so that the rate is kept

	// FailedBefore is of a dry run: in the filter of the act it keeps that to what was
	// counted. Zero from a server that does not tell it yet.
	FailedBefore time.Time `json:"failedBefore,omitzero"`
}

// EditedReplay is a dead letter's new payload.
type EditedReplay struct {
	Payload json.RawMessage `json:"payload,omitempty"` // any JSON
	// PayloadBase64 is the payload, not yet encoded, if it is no JSON. Nil is none, an empty one is empty.
	PayloadBase64 []byte `json:"payloadBase64,omitzero"`
	Reason        string `json:"reason,omitempty"` // for the audit, which keeps the old payload
	Forget        bool   `json:"forget,omitempty"` // its checkpoint and what its steps returned: every step runs again
	DryRun        bool   `json:"dryRun,omitempty"` // only say whether it would be done: the problem, or the job
}

// ReplayDeadLetters has dead letters run again, up to 1 000 a request.
func (c *Client) ReplayDeadLetters(ctx context.Context, what ReplayAct) (LettersActed, error) {
	return ask[LettersActed](ctx, c, post("/dead-letters/replay", what))
}

// DismissDeadLetters puts dead letters away, up to 1 000 a request.
func (c *Client) DismissDeadLetters(ctx context.Context, what LettersAct) (LettersActed, error) {
	return ask[LettersActed](ctx, c, post("/dead-letters/dismiss", what))
}

// ReplayJob has a dead letter run again with another payload. It takes a token that may
// also read payloads.
func (c *Client) ReplayJob(ctx context.Context, id string, with EditedReplay) (Job, error) {
	return ask[Job](ctx, c, post("/jobs", with).segment("job's id", id, "/replay"))
}
