package client

import (
	"context"
	"net/url"
	"strconv"
	"time"
)

// NewOperation is an act on many dead letters that outlives the request.
type NewOperation struct {
	Act string `json:"act"` // replay or dismiss
	// Filter has at least one condition. With the FailedBefore of a dry run it is exactly what was counted, but for
	// what has changed since.
	Filter        DeadLetterFilter `json:"filter"`
	RatePerSecond float64          `json:"ratePerSecond,omitempty"` // of a replay; 0 is without a limit
	Reason        string           `json:"reason,omitempty"`        // for the audit
}

// Operation is how far an act on many dead letters has come.
type Operation struct {
	ID            string           `json:"id"`
	Tenant        string           `json:"tenant,omitempty"` // "": of all tenants
	Act           string           `json:"act"`
	State         string           `json:"state"` // running, stopped or done
	Filter        DeadLetterFilter `json:"filter"`
	RatePerSecond float64          `json:"ratePerSecond,omitempty"`
	Matched       int64            `json:"matched"` // at the beginning
	Done          int64            `json:"done"`
	Passed        int64            `json:"passed"` // left alone
	Actor         string           `json:"actor"`
	Reason        string           `json:"reason,omitempty"`
	AuditID       string           `json:"auditRequestId,omitempty"` // request_id of its entries in the audit
	StartedAt     time.Time        `json:"startedAt"`
	StoppedAt     time.Time        `json:"stoppedAt,omitzero"`
	FinishedAt    time.Time        `json:"finishedAt,omitzero"`
	Failure       string           `json:"failure,omitempty"` // of the latest step, which is tried again
}

type operationsAnswer struct {
	Operations []Operation `json:"operations"`
}

// StartOperation makes the server act on many dead letters, also when the client has gone.
func (c *Client) StartOperation(ctx context.Context, what NewOperation) (Operation, error) {
	return ask[Operation](ctx, c, post("/operations", what))
}

// Operations lists up to limit operations (0 is 50, more than 200 is 200), newest first: those before an id, or
// from the newest on. A token of all tenants may name one.
func (c *Client) Operations(ctx context.Context, ofTenant string, limit int, before string) ([]Operation, error) {
	q := tenant(ofTenant)
	if limit > 0 {
		q.Set("limit", strconv.Itoa(limit))
	}
	set(q, "before", before)
	answer, err := ask[operationsAnswer](ctx, c, get("/operations", q))
	return answer.Operations, err
}

// Operation returns an operation; a [*Problem] with [CodeOperationNotFound] if there is none.
func (c *Client) Operation(ctx context.Context, id string) (Operation, error) {
	return ask[Operation](ctx, c, get("/operations", nil).segment("operation", id, ""))
}

// StopOperation stops an operation: when it returns, nothing more is done. The context may have a reason; see
// [WithReason].
func (c *Client) StopOperation(ctx context.Context, id string) (Operation, error) {
	return c.switchOperation(ctx, id, "/stop")
}

// ResumeOperation lets a stopped operation go on where it was. The context may have a reason; see [WithReason].
func (c *Client) ResumeOperation(ctx context.Context, id string) (Operation, error) {
	return c.switchOperation(ctx, id, "/resume")
}

func (c *Client) switchOperation(ctx context.Context, id, act string) (Operation, error) {
	r := post("/operations", nil)
	r.query = url.Values{}
	reason, _ := ctx.Value(reasonKey{}).(string)
	set(r.query, "reason", reason)
	return ask[Operation](ctx, c, r.segment("operation", id, act))
}
