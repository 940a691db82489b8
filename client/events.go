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

// Names of events. New ones may come: pass over those that you do not know.
const (
	// EventJob tells what a job is now.
	EventJob = "job"
	// EventResync says that something may have been left out: ask [Client.Jobs] for
	// what you need, and go on.
	EventResync = "resync"
	// EventPosition tells nothing but how far the stream is, past what the filter left
	// out, too: first when it has begun, unless other events come first, and again every
	// few seconds.
	EventPosition = ""
)

// Event is one thing that [Client.Events] tells.
type Event struct {
	Name string   // EventJob, EventResync or EventPosition
	ID   string   // of the latest position: to go on after it, in another process too; "" if there was none yet
	Job  JobEvent // of an EventJob
}

// JobEvent is what a job is now.
type JobEvent struct {
	ID         string    `json:"id"`
	Tenant     string    `json:"tenant,omitempty"` // for tokens of all tenants that do not ask for one
	Kind       string    `json:"kind"`
	Queue      string    `json:"queue"`
	Status     string    `json:"status"`
	Epoch      int64     `json:"epoch"` // rises with every attempt and whatever ends one: a lower one than you know is old news
	Attempt    int       `json:"attempt"`
	FinishedAt time.Time `json:"finishedAt,omitzero"` // zero while it is open
	Error      *JobError `json:"error,omitempty"`     // of the latest failed attempt
}

// EventFilter says which events. Its zero value is all.
type EventFilter struct {
	Kind   string
	Queue  string
	Status []string // that a job has come to: any of these
	Jobs   []string // ids, at most 100: any of these
	Tenant string   // whose, for tokens of all tenants; others have their own
}

func (f EventFilter) query() url.Values {
	q := url.Values{}
	set(q, "kind", f.Kind)
	set(q, "queue", f.Queue)
	set(q, "status", strings.Join(f.Status, ","))
	set(q, "job", strings.Join(f.Jobs, ","))
	set(q, "tenant", f.Tenant)
	return q
}

// Events tells what becomes of the jobs that the token may see and the filter means,
// after a position or, with "", from now on. The last state of every job that changed
// is told; those in between may be left out, and a state may be told twice. A filter
// by status leaves out that a job has gone on to another one.
//
// A position is one of any filter's.
//
// It does not end by itself: a connection that is lost is made again, as often as it
// takes, and what has changed meanwhile is told. What ends it is told last, as an
// error: a [*Problem] that waiting does not help, or the context's.
//
// A loop that takes long holds the stream up: the server then leaves things out, and
// says so by an EventResync.
func (c *Client) Events(ctx context.Context, f EventFilter, after string) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		for m, err := range c.listen(ctx, get("/events", f.query()), after) {
			e := Event{Name: m.name, ID: m.id}
			if err == nil && e.Name == EventJob {
				err = m.decode(&e.Job)
			}
			if !yield(e, err) || err != nil {
				return
			}
		}
	}
}

// JobEvents tells the states of one job, from the one that it has, without its payload
// and until it has closed: then it just ends. A dead letter has not closed, for
// somebody may have it run again. Lost connections are made again as by
// [Client.Events], and what ends it early is told last, as an error.
func (c *Client) JobEvents(ctx context.Context, id string) iter.Seq2[Job, error] {
	return func(yield func(Job, error) bool) {
		for m, err := range c.listen(ctx, get("/jobs", nil).segment("job's id", id, "/events"), "") {
			var job Job
			if err == nil {
				if m.name != EventJob { // each connection begins with the job's state: there is nothing to be missed
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
		return fmt.Errorf("the event %s is not what the API says: %w", m.name, err)
	}
	return nil
}
