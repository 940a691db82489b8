package client

import "context"

// CancelJob calls a job off. It returns the job: cancelled if it waited; still
// running, with CancelRequestedAt, if its handler was asked to stop. To repeat it is
// harmless.
func (c *Client) CancelJob(ctx context.Context, id string) (Job, error) {
	return ask[Job](ctx, c, post("/jobs", nil).segment("job's id", id, "/cancel"))
}

// ReleaseJob lets a held job run.
func (c *Client) ReleaseJob(ctx context.Context, id string) (Job, error) {
	return ask[Job](ctx, c, post("/jobs", nil).segment("job's id", id, "/release"))
}

// RetryJob has a dead letter run again with all its attempts, or a waiting job at
// once, and returns it as it is then. In another status it is a [*Problem] with
// [CodeJobStatusConflict].
func (c *Client) RetryJob(ctx context.Context, id string) (Job, error) {
	return ask[Job](ctx, c, post("/jobs", nil).segment("job's id", id, "/retry"))
}

// DismissJob puts a dead letter away.
func (c *Client) DismissJob(ctx context.Context, id string) (Job, error) {
	return ask[Job](ctx, c, post("/jobs", nil).segment("job's id", id, "/dismiss"))
}

// Bulk says which jobs to act on: by their ids, at most 1 000, or by a filter.
type Bulk struct {
	IDs    []string   `json:"ids,omitempty"`
	Filter *JobFilter `json:"filter,omitempty"` // at least one condition; without a status: those that the act is for
	DryRun bool       `json:"dryRun,omitempty"` // only tell which
}

// BulkResult is what became of each job.
type BulkResult struct {
	Done    int       `json:"done"` // acted on, or would be
	Refused int       `json:"refused"`
	Jobs    []Outcome `json:"jobs"`
	More    bool      `json:"more"` // there were more than 1 000: ask again
}

// Outcome is what became of one.
type Outcome struct {
	ID   string `json:"id"`
	Code Code   `json:"code,omitempty"` // why nothing was done; "" if it was
	// Requested is of cancellations: the job is running and was asked to stop.
	Requested bool `json:"requested,omitempty"`
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
