package client

import (
	"context"
	"encoding/json"
	"time"
)

// LettersAct selects dead letters for an act. One request does a part of it; continue with the Next of its answer.
type LettersAct struct {
	Filter DeadLetterFilter `json:"filter"`           // at least one condition; naming both statuses selects all
	DryRun bool             `json:"dryRun,omitempty"` // only count them
	Reason string           `json:"reason,omitempty"` // for the audit
	Cursor string           `json:"cursor,omitempty"` // Next of the previous answer, with the same filter
}

// ReplayAct is an act with a rate.
type ReplayAct struct {
	LettersAct
	RatePerSecond float64 `json:"ratePerSecond,omitempty"` // 0 means no limit
}

// LettersActed is the progress of an act on many dead letters.
type LettersActed struct {
	Matched      int64   `json:"matched"` // dead letters that the filter matches; not counted again with a cursor
	Done         int64   `json:"done"`    // of this request
	Passed       int64   `json:"passed"`  // skipped: something else happened to them meanwhile
	Next         string  `json:"next,omitempty"`
	AfterSeconds float64 `json:"afterSeconds,omitempty"` // wait this long before the next request, to keep the rate

	// FailedUntil is set by a dry run: in the filter of the act it restricts the act to what was counted. It is zero
	// from a server that does not support it yet.
	FailedUntil time.Time `json:"failedUntil,omitzero"`
}

// EditedReplay is a dead letter's new payload.
type EditedReplay struct {
	Payload json.RawMessage `json:"payload,omitempty"` // any JSON
	// PayloadBase64 is the payload, before encoding, if it is not JSON. Nil means none; an empty slice means an empty
	// payload.
	PayloadBase64 []byte `json:"payloadBase64,omitzero"`
	Reason        string `json:"reason,omitempty"` // for the audit, which keeps the old payload
	Forget        bool   `json:"forget,omitempty"` // drop its checkpoint and step results: every step runs again
	DryRun        bool   `json:"dryRun,omitempty"` // only report whether it would be done: the problem, or the job
}

// ReplayDeadLetters runs dead letters again, up to 1 000 per request. A request whose answer was lost can be repeated
// if it has a Cursor, or the FailedUntil of a dry run in its Filter: otherwise the repeat also replays jobs that were
// replayed and have failed again.
func (c *Client) ReplayDeadLetters(ctx context.Context, what ReplayAct) (LettersActed, error) {
	return ask[LettersActed](ctx, c, post("/dead-letters/replay", what))
}

// DismissDeadLetters dismisses dead letters, up to 1 000 per request.
func (c *Client) DismissDeadLetters(ctx context.Context, what LettersAct) (LettersActed, error) {
	return ask[LettersActed](ctx, c, post("/dead-letters/dismiss", what))
}

// ReplayDeadLetter runs a dead letter again with another payload. It requires a token that may also read payloads.
func (c *Client) ReplayDeadLetter(ctx context.Context, id string, with EditedReplay) (Job, error) {
	return ask[Job](ctx, c, post("/dead-letters", with).segment("job's id", id, "/replay"))
}
