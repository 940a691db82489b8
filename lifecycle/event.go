package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// An Event is something that has happened to a job. Fields that an event does not carry are zero.
type Event struct {
	Job    outbox.ID
	Tenant outbox.ID // zero for a message that does not carry it
	Name   Name
	// N numbers the events of a job from 1, without gaps. StaleCompletionIgnored, which is not a change, has the number
	// of the last event before it.
	N              int
	PreviousStatus outbox.Status // before it; "" for Created and StaleCompletionIgnored
	Status         outbox.Status // after it
	Epoch          int64         // of StaleCompletionIgnored, that of the attempt that was refused
	Attempt        int
	At             time.Time // by the database's clock

	Queue string
	Kind  string
	Key   string

	MaxAttempts int       // of Created
	Priority    *int      // of Created, of Edited, and of any other change that sets another one
	Deadline    time.Time // of Created
	Parent      outbox.ID // of Created: the job whose end stored this one
	RunAt       time.Time // of Created, and of each change after which the job waits
	Worker      string    // of Started
	LostLeases  int
	Error       *Error // of the latest failed attempt, if the event ends one without completing the job

	Payload     []byte // of Created, and of Retried with another payload
	ContentType string // of the payload
	Result      []byte // of Completed
	// PayloadBytes and ResultBytes are the sizes of a payload or result that the event leaves out, because an event is
	// 4 MiB at most.
	PayloadBytes int
	ResultBytes  int

	Progress *Progress     // of Progressed
	Lines    []Line        // of Logged: new ones only
	Refused  outbox.Status // of StaleCompletionIgnored: the status that the attempt tried to set
}

// Progress is how far a handler reports to be.
type Progress struct {
	Current int64     `json:"current"`
	Total   int64     `json:"total"`
	Message string    `json:"message"`
	At      time.Time `json:"at"`
}

// Line is a line of a job's log.
type Line struct {
	Line    int64     `json:"line"` // its number within the attempt
	At      time.Time `json:"at"`
	Level   string    `json:"level"`
	Message string    `json:"message"`
}

// Name is the name of an event; its topic is "job." and the name.
type Name string

// Events are changes of a job's status.
const (
	Created     Name = "created"     // stored: Status is pending, or created if it is held
	Released    Name = "released"    // a held job now waits
	Started     Name = "started"     // an attempt begins
	Retry       Name = "retry"       // an attempt failed, or lost its lease; another follows
	Snoozed     Name = "snoozed"     // the handler asked to go on later; the attempt does not count
	Interrupted Name = "interrupted" // the worker stopped; the attempt does not count
	Blocked     Name = "blocked"     // its key is at its limit
	Unblocked   Name = "unblocked"   // its key has room for it
	Failed      Name = "failed"      // the handler declared it failed permanently: a dead letter
	Dead        Name = "dead"        // attempts or leases ran out: a dead letter
	Retried     Name = "retried"     // a person retried a dead letter, or let a waiting job run at once
	Edited      Name = "edited"      // a person changed the queue, priority or time of a waiting job
	Completed   Name = "completed"
	Cancelled   Name = "cancelled"
	Expired     Name = "expired"   // its deadline has passed
	Skipped     Name = "skipped"   // a newer job has taken its place in the queue of its key
	Stale       Name = "stale"     // its lease lapsed, and its key has gone on to other jobs
	Dismissed   Name = "dismissed" // a person dismissed a dead letter
)

// These events are not changes of a job's status.
const (
	Progressed Name = "progress"
	Logged     Name = "logged"
	// StaleCompletionIgnored reports that an attempt that had lost the job tried to end it, without effect.
	StaleCompletionIgnored Name = "staleCompletionIgnored"
)

// Error is the reason for which an attempt failed.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// wire is the body of a message.
type wire struct {
	Job           outbox.ID       `json:"job"`
	Tenant        outbox.ID       `json:"tenant"`
	Event         Name            `json:"event"`
	N             int             `json:"n"`
	Previous      outbox.Status   `json:"previous"`
	State         outbox.Status   `json:"state"`
	Epoch         int64           `json:"epoch"`
	Attempt       int             `json:"attempt"`
	At            time.Time       `json:"at"`
	Queue         string          `json:"queue"`
	Kind          string          `json:"kind"`
	Key           string          `json:"key"`
	MaxAttempts   int             `json:"max_attempts"`
	Priority      *int            `json:"priority"`
	Deadline      time.Time       `json:"deadline"`
	Parent        outbox.ID       `json:"parent"`
	RunAt         time.Time       `json:"run_at"`
	Worker        string          `json:"worker"`
	LostLeases    int             `json:"lost_leases"`
	Error         *Error          `json:"error"`
	ContentType   string          `json:"content_type"`
	Payload       json.RawMessage `json:"payload"`
	PayloadBase64 []byte          `json:"payload_base64"`
	PayloadBytes  int             `json:"payload_bytes"`
	Result        json.RawMessage `json:"result"`
	ResultBase64  []byte          `json:"result_base64"`
	ResultBytes   int             `json:"result_bytes"`
	Progress      *Progress       `json:"progress"`
	Lines         []Line          `json:"lines"`
	Refused       outbox.Status   `json:"refused"`
}

// Decode decodes the body of an event as stored in outbox.events, which is also what a relay publishes under the preset
// posthaste or without one. It ignores unknown fields.
func Decode(body []byte) (Event, error) {
	var w wire
	if err := json.Unmarshal(body, &w); err != nil {
		return Event{}, fmt.Errorf("decode an event of a job: %w", err)
	}
	if w.Job.IsZero() || w.Event == "" || w.N < 1 {
		return Event{}, errors.New("decode an event of a job: it has no job, event or n")
	}
	e := Event{
		Job: w.Job, Tenant: w.Tenant, Name: w.Event, N: w.N, PreviousStatus: w.Previous, Status: w.State,
		Epoch: w.Epoch, Attempt: w.Attempt, At: w.At, Queue: w.Queue, Kind: w.Kind, Key: w.Key,
		MaxAttempts: w.MaxAttempts, Priority: w.Priority, Deadline: w.Deadline, Parent: w.Parent, RunAt: w.RunAt,
		Worker: w.Worker, LostLeases: w.LostLeases, Error: w.Error, Payload: w.PayloadBase64, ContentType: w.ContentType,
		Result: w.ResultBase64, PayloadBytes: w.PayloadBytes, ResultBytes: w.ResultBytes, Progress: w.Progress,
		Lines: w.Lines, Refused: w.Refused,
	}
	if e.Tenant.IsZero() {
		e.Tenant = outbox.RootTenant
	}
	if e.Name == Created && e.RunAt.IsZero() { // due at once
		e.RunAt = e.At
	}
	if e.Name == Created && e.Priority == nil {
		e.Priority = new(0)
	}
	if w.Payload != nil {
		e.Payload, e.ContentType = w.Payload, "application/json"
	}
	if w.Result != nil {
		e.Result = w.Result
	}
	return e, nil
}
