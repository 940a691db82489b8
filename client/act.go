package client

import (
	"context"
	"time"
)

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
	Filter *JobFilter `json:"filter,omitempty"` // at least one condition; without a status: dead letters
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
}

// RetryJobs retries many jobs, one after the other.
func (c *Client) RetryJobs(ctx context.Context, which Bulk) (BulkResult, error) {
	return ask[BulkResult](ctx, c, post("/jobs/retry", which))
}

// DismissJobs dismisses many dead letters, one after the other.
func (c *Client) DismissJobs(ctx context.Context, which Bulk) (BulkResult, error) {
	return ask[BulkResult](ctx, c, post("/jobs/dismiss", which))
}

// Queue is what waits in a queue and whether it is worked.
type Queue struct {
	Queue       string           `json:"queue"`
	PausedSince time.Time        `json:"pausedSince,omitzero"`
	Jobs        map[string]int64 `json:"jobs"` // open jobs by status
}

// Queues is all queues with open jobs and those that are paused.
type Queues struct {
	Queues []Queue   `json:"queues"`
	AsOf   time.Time `json:"asOf"` // when they were counted
}

// QueueState says whether a queue is paused.
type QueueState struct {
	Queue  string `json:"queue"`
	Paused bool   `json:"paused"`
}

// Stats is how much there is to do.
type Stats struct {
	Open         int64            `json:"open"`
	DeadLetters  int64            `json:"deadLetters"`
	Jobs         map[string]int64 `json:"jobs"` // open jobs by status
	PausedQueues int              `json:"pausedQueues"`
	AsOf         time.Time        `json:"asOf"` // when they were counted
}

// Queues counts the open jobs of each queue.
func (c *Client) Queues(ctx context.Context) (Queues, error) {
	return ask[Queues](ctx, c, get("/queues", nil))
}

// PauseQueue stops claims of a queue in all processes; what runs goes on.
func (c *Client) PauseQueue(ctx context.Context, queue string) (QueueState, error) {
	return ask[QueueState](ctx, c, post("/queues", nil).segment("queue", queue, "/pause"))
}

// ResumeQueue lets claims of a queue go on.
func (c *Client) ResumeQueue(ctx context.Context, queue string) (QueueState, error) {
	return ask[QueueState](ctx, c, post("/queues", nil).segment("queue", queue, "/resume"))
}

// Stats sums up the open jobs.
func (c *Client) Stats(ctx context.Context) (Stats, error) {
	return ask[Stats](ctx, c, get("/stats", nil))
}
