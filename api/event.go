package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// EventFilter says which events a stream tells.
type EventFilter struct {
	Kind   string   `query:"kind" maxLength:"128"`
	Queue  string   `query:"queue" maxLength:"128"`
	Status []string `query:"status" nullable:"false" enum:"created,pending,blocked,running,retrying,failed,dead,succeeded,cancelled,expired,skipped,stale,dismissed" doc:"That a job has come to: any of these, separated by commas"`
	Job    []string `query:"job" nullable:"false" maxItems:"100" doc:"Ids of jobs, separated by commas"`
}

// read is the filter as the hub has it.
func (f EventFilter) read() (wants, error) {
	w := wants{kind: f.Kind, queue: f.Queue}
	for _, status := range f.Status {
		if w.statuses == nil {
			w.statuses = map[outbox.Status]bool{}
		}
		w.statuses[outbox.Status(status)] = true
	}
	for i, text := range f.Job {
		id, err := outbox.ParseID(text)
		if err != nil {
			return w, invalidInput.because("", Fault{Parameter: fmt.Sprintf("job[%d]", i), Detail: "is no id"})
		}
		if w.jobs == nil {
			w.jobs = map[outbox.ID]bool{}
		}
		w.jobs[id] = true
	}
	return w, nil
}

// wants is which events of its feed a reader is told. It can only leave out: whose
// they are, the feed decides.
type wants struct {
	kind, queue string                 // "" is any
	statuses    map[outbox.Status]bool // nil is any
	jobs        map[outbox.ID]bool     // nil is any
}

func (w wants) everything() bool {
	return w.kind == "" && w.queue == "" && w.statuses == nil && w.jobs == nil
}

func (w wants) wants(c operator.Change) bool {
	return (w.kind == "" || w.kind == c.Kind) && (w.queue == "" || w.queue == c.Queue) &&
		(w.statuses == nil || w.statuses[c.Status]) && (w.jobs == nil || w.jobs[c.ID])
}

// JobEvent is what GET /events tells of a job: what it is now.
type JobEvent struct {
	ID         string    `json:"id" format:"uuid"`
	Tenant     string    `json:"tenant,omitempty" format:"uuid" doc:"For tokens of all tenants that do not ask for one"`
	Kind       string    `json:"kind"`
	Queue      string    `json:"queue"`
	Status     string    `json:"status"`
	Epoch      int64     `json:"epoch" doc:"Rises with every attempt and whatever ends one"`
	Attempt    int       `json:"attempt"`
	FinishedAt time.Time `json:"finishedAt,omitzero"`
	Error      *JobError `json:"error,omitempty" doc:"Of the latest failed attempt"`
}

// batch is what one look found.
type batch struct {
	events []event
	mark   bool              // something may be left out
	after  operator.Position // of the reader when it has all of it
	text   []byte            // of it all as it is sent; the last event has the position as its id
}

type event struct {
	operator.Change
	data []byte // of the event, without its name and id
}

// newBatch has an event for each change.
func newBatch(tenant outbox.ID, changes []operator.Change, after operator.Position) *batch {
	b := &batch{after: after, events: make([]event, len(changes))}
	for i, c := range changes {
		e := JobEvent{
			ID: c.ID.String(), Kind: c.Kind, Queue: c.Queue, Status: c.Status.String(), Epoch: c.Epoch, Attempt: c.Attempt, FinishedAt: utc(c.FinishedAt),
		}
		if tenant.IsZero() {
			e.Tenant = c.Tenant.String()
		}
		if c.ErrorCode != "" {
			e.Error = &JobError{Code: c.ErrorCode}
		}
		b.events[i] = event{c, encodeEvent(e)}
	}
	b.write()
	return b
}

// resync says that something may have been left out.
func resync(after operator.Position) *batch {
	var text bytes.Buffer
	writeEvent(&text, "resync", after.String(), struct{}{})
	return &batch{mark: true, after: after, text: text.Bytes()}
}

// write makes the text. Only the last event has an id: whoever loses the connection
// within begins before all of them again.
func (b *batch) write() {
	var text bytes.Buffer
	for i, e := range b.events {
		id := ""
		if i == len(b.events)-1 {
			id = b.after.String()
		}
		writeData(&text, "job", id, e.data)
	}
	b.text = text.Bytes()
}

// of is the part of it that a reader wants. It moves him on to the same place, also
// if nothing is left, and a mark is everybody's: nobody knows what was left out.
func (b *batch) of(w wants) *batch {
	if b.mark || w.everything() {
		return b
	}
	part := &batch{after: b.after}
	for _, e := range b.events {
		if w.wants(e.Change) {
			part.events = append(part.events, e)
		}
	}
	part.write()
	return part
}

// writeEvent writes a server-sent event.
func writeEvent(to *bytes.Buffer, name, id string, data any) {
	writeData(to, name, id, encodeEvent(data))
}

func writeData(to *bytes.Buffer, name, id string, data []byte) {
	to.WriteString("event: " + name + "\n")
	if id != "" {
		to.WriteString("id: " + id + "\n")
	}
	to.WriteString("data: ")
	to.Write(data)
	to.WriteByte('\n')
}

// encodeEvent makes a line. JSON has no line breaks of its own.
func encodeEvent(data any) []byte {
	var line bytes.Buffer
	_ = json.NewEncoder(&line).Encode(data) // a struct of ours, into memory; ends the line
	return line.Bytes()
}
