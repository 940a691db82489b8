package client

import (
	"context"
	"iter"
	"net/url"
)

type reasonKey struct{}

// WithReason adds a reason, for the audit, to acts that are made with the context: those on one job, queue, key,
// schedule, sink, operation or replay. Other acts have a field for it.
func WithReason(ctx context.Context, reason string) context.Context {
	return context.WithValue(ctx, reasonKey{}, reason)
}

// because adds the context's reason to a request.
func (r request) because(ctx context.Context) request {
	if r.query == nil {
		r.query = url.Values{}
	}
	reason, _ := ctx.Value(reasonKey{}).(string)
	set(r.query, "reason", reason)
	return r
}

func (c *Client) actOn(ctx context.Context, id, act string) (Job, error) {
	r := post("/jobs", nil).because(ctx)
	return ask[Job](ctx, c, r.segment("job's id", id, act))
}

// CancelJob cancels a job and returns it: cancelled if it waited; still running, with CancelRequestedAt, if its handler
// was asked to stop. Repeating it is harmless.
func (c *Client) CancelJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/cancel")
}

// ReleaseJob lets a held job run.
func (c *Client) ReleaseJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/release")
}

// RetryJob runs a dead letter again with all its attempts, or a waiting job at once, and returns the job's new state.
// For a job in another status it returns a [*Problem] with [CodeJobStatusConflict].
func (c *Client) RetryJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/retry")
}

// DismissJob dismisses a dead letter.
func (c *Client) DismissJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/dismiss")
}

// Bulk selects jobs to act on, by their ids, at most 1 000, or by a filter.
type Bulk struct {
	IDs    []string   `json:"ids,omitempty"`
	Filter *JobFilter `json:"filter,omitempty"` // at least one condition; without a status, those that the act is for
	While  []string   `json:"while,omitempty"`  // with IDs: only jobs that by then are in one of these statuses
	// With IDs: the epoch of each, in the same order; only jobs that still have it by then, to which nothing has
	// happened since somebody saw them.
	Epochs []int64 `json:"epochs,omitempty"`
	DryRun bool    `json:"dryRun,omitempty"` // only report which
	Reason string  `json:"reason,omitempty"` // for the audit
	Cursor string  `json:"cursor,omitempty"` // with a filter: Next of the previous answer
}

// BulkResult contains the outcome for each job.
type BulkResult struct {
	Done    int       `json:"done"` // acted on, or would be
	Refused int       `json:"refused"`
	Jobs    []Outcome `json:"jobs"`
	// More reports that there may be more jobs: with a filter, those from Next on; with ids, those that are not among
	// Jobs.
	More bool   `json:"more"`
	Next string `json:"next,omitempty"` // the Cursor for continuing
}

// Outcome is the outcome for one job.
type Outcome struct {
	ID   string `json:"id"`
	Code Code   `json:"code,omitempty"` // why nothing was done, or that this is unknown; "" if it was done
	// Requested is set by cancellations: the job is running and was asked to stop.
	Requested bool `json:"requested,omitempty"`
}

// InParts repeats an act on many jobs, such as c.RetryJobs, until there are no more, and yields each answer: a request
// takes bounded time, and with a filter acts on 1 000 jobs at most. Jobs that are enqueued after the first request are
// not touched. Acts of a request stay in effect if a later request fails.
func InParts(ctx context.Context, which Bulk,
	act func(context.Context, Bulk) (BulkResult, error),
) iter.Seq2[BulkResult, error] {
	return func(yield func(BulkResult, error) bool) {
		for {
			part, err := act(ctx, which)
			if !yield(part, err) || err != nil || !part.More {
				return
			}
			which.Cursor = part.Next
			which.IDs = which.IDs[min(len(part.Jobs), len(which.IDs)):]
			which.Epochs = which.Epochs[min(len(part.Jobs), len(which.Epochs)):]
			if which.Cursor == "" && len(which.IDs) == 0 {
				return
			}
		}
	}
}

// CancelJobs cancels many jobs, one after the other.
func (c *Client) CancelJobs(ctx context.Context, which Bulk) (BulkResult, error) {
	return ask[BulkResult](ctx, c, post("/jobs/cancel", which))
}

// ReleaseJobs releases many held jobs, one after the other.
func (c *Client) ReleaseJobs(ctx context.Context, which Bulk) (BulkResult, error) {
	return ask[BulkResult](ctx, c, post("/jobs/release", which))
}

// RetryJobs retries many jobs, one after the other.
func (c *Client) RetryJobs(ctx context.Context, which Bulk) (BulkResult, error) {
	return ask[BulkResult](ctx, c, post("/jobs/retry", which))
}

// DismissJobs dismisses many dead letters, one after the other.
func (c *Client) DismissJobs(ctx context.Context, which Bulk) (BulkResult, error) {
	return ask[BulkResult](ctx, c, post("/jobs/dismiss", which))
}
