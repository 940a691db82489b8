package client

import (
	"context"
	"iter"
	"net/url"
)

type reasonKey struct{}

// WithReason has the acts that are made with the context give a reason, which goes to the
// audit: those on one job, queue, key, schedule, sink, operation or replay. Others have a
// field for it.
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

// CancelJob calls a job off. It returns the job: cancelled if it waited; still
// running, with CancelRequestedAt, if its handler was asked to stop. To repeat it is
// harmless.
func (c *Client) CancelJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/cancel")
}

// ReleaseJob lets a held job run.
func (c *Client) ReleaseJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/release")
}

// RetryJob has a dead letter run again with all its attempts, or a waiting job at
// once, and returns it as it is then. In another status it is a [*Problem] with
// [CodeJobStatusConflict].
func (c *Client) RetryJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/retry")
}

// DismissJob puts a dead letter away.
func (c *Client) DismissJob(ctx context.Context, id string) (Job, error) {
	return c.actOn(ctx, id, "/dismiss")
}

// Bulk says which jobs to act on: by their ids, at most 1 000, or by a filter.
type Bulk struct {
	IDs    []string   `json:"ids,omitempty"`
	Filter *JobFilter `json:"filter,omitempty"` // at least one condition; without a status: those that the act is for
	While  []string   `json:"while,omitempty"`  // with IDs: only those that are in one of these statuses by then
	DryRun bool       `json:"dryRun,omitempty"` // only tell which
	Reason string     `json:"reason,omitempty"` // for the audit
	Cursor string     `json:"cursor,omitempty"` // with a filter: Next of the answer before
}

// BulkResult is what became of each job.
type BulkResult struct {
	Done    int       `json:"done"` // acted on, or would be
	Refused int       `json:"refused"`
	Jobs    []Outcome `json:"jobs"`
	// More reports that there may be more: by a filter with Next, by ids those that are not among Jobs.
	More bool   `json:"more"`
	Next string `json:"next,omitempty"` // the Cursor that goes on
}

// Outcome is what became of one.
type Outcome struct {
	ID   string `json:"id"`
	Code Code   `json:"code,omitempty"` // why nothing was done, or why it is not known; "" if it was done
	// Requested is of cancellations: the job is running and was asked to stop.
	Requested bool `json:"requested,omitempty"`
}

// InParts makes an act on many jobs, such as c.RetryJobs, request after request until
// there are no more, and yields each answer: a request has a bounded time, and by a
// filter comes to 1 000 jobs at most. Jobs that are enqueued after the first one are not
// touched. What a request did stays done if the next one fails.
func InParts(ctx context.Context, which Bulk, act func(context.Context, Bulk) (BulkResult, error)) iter.Seq2[BulkResult, error] {
	return func(yield func(BulkResult, error) bool) {
		for {
			part, err := act(ctx, which)
			if !yield(part, err) || err != nil || !part.More {
				return
			}
			which.Cursor = part.Next
			which.IDs = which.IDs[min(len(part.Jobs), len(which.IDs)):]
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
