package client

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"time"
)

// These are the names of changes. Later versions may add others: ignore those that you do not know.
const (
	// ChangeJob carries the present state of a job.
	ChangeJob = "job"
	// ChangeResync means that changes may be missing: query [Client.Jobs] for what you need, and continue.
	ChangeResync = "resync"
	// ChangePosition carries only the position of the stream, which also advances past changes that the filter removed.
	// It is sent at the beginning, unless a change is sent first, and again every few seconds.
	ChangePosition = ""
)

// Change is one message of [Client.Changes].
type Change struct {
	Name string    // ChangeJob, ChangeResync or ChangePosition
	ID   string    // the latest position: pass it to Changes to continue, in any process; "" if there was none yet
	Job  JobChange // if Name is ChangeJob
}

// JobChange is the present state of a job that changed.
type JobChange struct {
	ID         string    `json:"id"`
	Tenant     string    `json:"tenant,omitempty"` // for tokens of all tenants that do not select one
	Kind       string    `json:"kind"`
	Queue      string    `json:"queue"`
	Status     string    `json:"status"`
	Epoch      int64     `json:"epoch"` // rises with every attempt and its end; ignore lower ones than you know
	Attempt    int       `json:"attempt"`
	FinishedAt time.Time `json:"finishedAt,omitzero"` // zero while it is open
	Error      *JobError `json:"error,omitempty"`     // of the latest failed attempt
}

// ChangeFilter selects changes. Its zero value selects all.
type ChangeFilter struct {
	Kind   string
	Queue  string
	Status []string // after the change: any of these
	Jobs   []string // ids, at most 100: any of these
	Tenant string   // for tokens of all tenants; others see their own
}

func (f ChangeFilter) query() url.Values {
	q := url.Values{}
	set(q, "kind", f.Kind)
	set(q, "queue", f.Queue)
	set(q, "status", strings.Join(f.Status, ","))
	set(q, "job", strings.Join(f.Jobs, ","))
	set(q, "tenant", f.Tenant)
	return q
}

// Changes yields the changes of the jobs that the token may see and the filter matches, after a position or, if after
// is "", from now on. It yields the last state of every job that changed; it may omit states in between, and yield a
// state twice. With a filter by status, you are not notified when a job leaves that status. A position may be used with
// another filter than the one with which it came.
//
// Changes does not end on its own. It reconnects when the connection is lost, and then yields what has changed
// meanwhile. It yields an error last: a [*Problem] that does not pass with time, or the context's error.
//
// If the loop's body takes long, the server may leave changes out, and then sends a ChangeResync.
func (c *Client) Changes(ctx context.Context, f ChangeFilter, after string) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		for m, err := range c.listen(ctx, get("/changes", f.query()), after) {
			e := Change{Name: m.name, ID: m.id}
			if err == nil && e.Name == ChangeJob {
				err = m.decode(&e.Job)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// JobChanges yields the states of one job, without its payload, from the present one until it has closed. A dead letter
// has not closed, because it may be retried. JobChanges reconnects as [Client.Changes] does, and yields an error last
// if it ends early.
func (c *Client) JobChanges(ctx context.Context, id string) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		for m, err := range c.listen(ctx, get("/jobs", nil).segment("job's id", id, "/changes"), "") {
			var job Job
			if err == nil {
				if m.name != ChangeJob { // each connection begins with the job's present state, so nothing is missed
					continue
				}
				err = m.decode(&job)
			}
			if !yield(job, err) || err != nil || !job.FinishedAt.IsZero() {
				return
			}
		}
	}
}

func (m message) decode(into any) error {
	if err := json.Unmarshal(m.data, into); err != nil {
		return fmt.Errorf("the event %s cannot be read: %w", m.name, err)
	}
	return nil
}
