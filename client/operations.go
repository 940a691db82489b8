package client

import (
	"context"
	"iter"
	"time"
)

// NewOperation is an act on many jobs that outlives the request.
type NewOperation struct {
	// Act is replay or dismiss, for dead letters; or cancel, release, retry or edit, for open jobs.
	Act string `json:"act"`
	// Filter selects dead letters, by at least one condition. With the FailedUntil of a preview it selects exactly
	// those that were counted, except any that have changed since.
	Filter DeadLetterFilter `json:"filter,omitzero"`
	// Jobs selects open jobs, by at least one condition. With the AsOf of a preview it selects exactly those that were
	// counted, except any that have changed since.
	Jobs          OpenJobsFilter `json:"jobs,omitzero"`
	Edit          JobEdit        `json:"edit,omitzero"`           // for edit
	RatePerSecond float64        `json:"ratePerSecond,omitempty"` // 0 means no limit; not for dismiss
	Reason        string         `json:"reason,omitempty"`        // for the audit
}

// JobEdit lists changes to waiting jobs. A field that is zero or nil changes nothing.
type JobEdit struct {
	Queue    string    `json:"queue,omitempty"` // jobs with a key are not changed
	Priority *int      `json:"priority,omitempty"`
	RunAt    time.Time `json:"runAt,omitzero"` // a time in the past means now
}

// OpenJobsFilter selects open jobs for an operation. It leaves out those in a status in which the act is not possible.
type OpenJobsFilter struct {
	Tenant       string    `json:"tenant,omitempty"` // for tokens of all tenants; "" means any
	Kind         string    `json:"kind,omitempty"`
	Queue        string    `json:"queue,omitempty"`
	Key          string    `json:"key,omitempty"`
	Status       []string  `json:"status,omitempty"` // any of these
	CreatedSince time.Time `json:"createdSince,omitzero"`
	CreatedUntil time.Time `json:"createdUntil,omitzero"`
	AsOf         string    `json:"asOf,omitempty"` // of a preview with the same conditions
}

// OperationPreview is how many jobs an operation would act on.
type OperationPreview struct {
	Matched     int64            `json:"matched"`
	Keyed       int64            `json:"keyed,omitempty"`      // of an act on open jobs: how many have a key
	ByStatus    map[string]int64 `json:"byStatus,omitempty"`   // of an act on open jobs
	AsOf        string           `json:"asOf,omitempty"`       // of an act on open jobs, for their filter
	FailedUntil time.Time        `json:"failedUntil,omitzero"` // of an act on dead letters, for theirs
}

// Operation is the progress of an act on many jobs.
type Operation struct {
	ID            string           `json:"id"`
	Tenant        string           `json:"tenant,omitempty"` // "" means all tenants
	Act           string           `json:"act"`
	State         string           `json:"state"`           // running, stopped or done
	Filter        DeadLetterFilter `json:"filter,omitzero"` // of an act on dead letters
	Jobs          OpenJobsFilter   `json:"jobs,omitzero"`   // of one on open jobs
	Edit          JobEdit          `json:"edit,omitzero"`   // of edit
	RatePerSecond float64          `json:"ratePerSecond,omitempty"`
	Matched       int64            `json:"matched"`              // at the beginning
	Collecting    bool             `json:"collecting,omitempty"` // nothing is done yet: it stores which jobs are meant
	Collected     int64            `json:"collected,omitempty"`  // while Collecting: jobs stored so far
	Done          int64            `json:"done"`
	Passed        int64            `json:"passed"` // skipped
	Actor         string           `json:"actor"`
	Reason        string           `json:"reason,omitempty"`
	AuditID       string           `json:"auditRequestId,omitempty"` // request_id of its entries in the audit
	StartedAt     time.Time        `json:"startedAt"`
	StoppedAt     time.Time        `json:"stoppedAt,omitzero"`
	FinishedAt    time.Time        `json:"finishedAt,omitzero"`
	Failure       string           `json:"failure,omitempty"` // of the latest step, which is tried again
}

// OperationPage is a page of the operations.
type OperationPage struct {
	Operations []Operation `json:"operations"`     // newest first
	Next       string      `json:"next,omitempty"` // the cursor of the next page; "" if there is none
}

// PreviewOperation counts the jobs that an operation would act on.
func (c *Client) PreviewOperation(ctx context.Context, what NewOperation) (OperationPreview, error) {
	return ask[OperationPreview](ctx, c, post("/operations/preview", what))
}

// StartOperation makes the server act on many jobs, even when the client has gone.
func (c *Client) StartOperation(ctx context.Context, what NewOperation) (Operation, error) {
	return ask[Operation](ctx, c, post("/operations", what))
}

// OperationPage lists operations. A token of all tenants may select a tenant; others see their own. A limit of 0 means
// 50, at most 200; the cursor "" begins with the first page.
func (c *Client) OperationPage(ctx context.Context, ofTenant string, limit int, cursor string) (OperationPage, error) {
	return ask[OperationPage](ctx, c, get("/operations", PageRequest{Limit: limit, Cursor: cursor}.add(tenant(ofTenant))))
}

// Operations yields the operations, newest first, page after page, and finally an error if there is one.
func (c *Client) Operations(ctx context.Context, ofTenant string) iter.Seq2[Operation, error] {
	return pages(func(cursor string) ([]Operation, string, error) {
		page, err := c.OperationPage(ctx, ofTenant, 200, cursor)
		return page.Operations, page.Next, err
	})
}

// Operation returns an operation, or a [*Problem] with [CodeOperationNotFound] if there is none.
func (c *Client) Operation(ctx context.Context, id string) (Operation, error) {
	return ask[Operation](ctx, c, get("/operations", nil).segment("operation", id, ""))
}

// StopOperation stops an operation: after it returns, nothing more is done. The context may have a reason; see
// [WithReason].
func (c *Client) StopOperation(ctx context.Context, id string) (Operation, error) {
	return c.switchOperation(ctx, id, "/stop")
}

// ResumeOperation lets a stopped operation continue where it was. The context may have a reason; see [WithReason].
func (c *Client) ResumeOperation(ctx context.Context, id string) (Operation, error) {
	return c.switchOperation(ctx, id, "/resume")
}

func (c *Client) switchOperation(ctx context.Context, id, act string) (Operation, error) {
	r := post("/operations", nil).because(ctx)
	return ask[Operation](ctx, c, r.segment("operation", id, act))
}
