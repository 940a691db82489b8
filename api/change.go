package api

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/outbox"
)

// ChangeFilter says which changes a stream sends.
type ChangeFilter struct {
	Kind   string   `query:"kind" maxLength:"128"`
	Queue  string   `query:"queue" maxLength:"128"`
	Status []string `query:"status" nullable:"false" enum:"created,pending,blocked,running,retrying,failed,dead,succeeded,cancelled,expired,skipped,stale,dismissed" doc:"The status after the change: any of these, separated by commas"`
	Job    []string `query:"job" nullable:"false" maxItems:"100" doc:"Ids of jobs, separated by commas"`
}

// read parses the filter for the hub.
func (f ChangeFilter) read() (filter, error) {
	w := filter{kind: f.Kind, queue: f.Queue}
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

// filter leaves changes of a feed out of a reader's stream. It cannot add any: the feed
// decides whose jobs they are.
type filter struct {
	kind, queue string                 // "" is any
	statuses    map[outbox.Status]bool // nil is any
	jobs        map[outbox.ID]bool     // nil is any
}

func (w filter) matchesAll() bool {
	return w.kind == "" && w.queue == "" && w.statuses == nil && w.jobs == nil
}

func (w filter) matches(c changefeed.Change) bool {
	return (w.kind == "" || w.kind == c.Kind) && (w.queue == "" || w.queue == c.Queue) &&
		(w.statuses == nil || w.statuses[c.Status]) && (w.jobs == nil || w.jobs[c.ID])
}

// JobChange is what GET /changes sends of a job: its present state.
type JobChange struct {
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

// batch is what one look at the database found.
type batch struct {
	changes []change
	resync  bool                // changes may be left out
	after   changefeed.Position // of a reader that has read all of it
	text    []byte              // all of it as server-sent events; the last has the position as its id
}

type change struct {
	changefeed.Change
	data []byte // JSON of a JobChange
}

// newBatch encodes changes that were found.
func newBatch(tenant outbox.ID, changes []changefeed.Change, after changefeed.Position) *batch {
	b := &batch{after: after, changes: make([]change, len(changes))}
	for i, c := range changes {
		e := JobChange{
			ID: c.ID.String(), Kind: c.Kind, Queue: c.Queue, Status: string(c.Status), Epoch: c.Epoch, Attempt: c.Attempt, FinishedAt: utc(c.FinishedAt),
		}
		if tenant.IsZero() {
			e.Tenant = c.Tenant.String()
		}
		if c.ErrorCode != "" {
			e.Error = &JobError{Code: c.ErrorCode}
		}
		b.changes[i] = change{c, encodeData(e)}
	}
	b.write()
	return b
}

// resync is a batch that says only that changes may have been left out.
func resync(after changefeed.Position) *batch {
	var text bytes.Buffer
	writeEvent(&text, "resync", after.String(), struct{}{})
	return &batch{resync: true, after: after, text: text.Bytes()}
}

// write makes the text. Only the last event has an id: a client that loses the connection
// within the batch is sent all of it again.
func (b *batch) write() {
	var text bytes.Buffer
	for i, e := range b.changes {
		id := ""
		if i == len(b.changes)-1 {
			id = b.after.String()
		}
		writeData(&text, "job", id, e.data)
	}
	b.text = text.Bytes()
}

// matching returns the part of a batch that a filter lets through. Its position is the
// same, also if nothing is left. A resync is sent to every reader, because nobody knows
// which changes were left out.
func (b *batch) matching(w filter) *batch {
	if b.resync || w.matchesAll() {
		return b
	}
	part := &batch{after: b.after}
	for _, e := range b.changes {
		if w.matches(e.Change) {
			part.changes = append(part.changes, e)
		}
	}
	part.write()
	return part
}

// writeEvent writes a server-sent event.
func writeEvent(to *bytes.Buffer, name, id string, data any) {
	writeData(to, name, id, encodeData(data))
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

// encodeData encodes the data of a server-sent event as one line: JSON has no line breaks of its own.
func encodeData(data any) []byte {
	var line bytes.Buffer
	_ = json.NewEncoder(&line).Encode(data) // a struct of ours, into memory; ends the line
	return line.Bytes()
}
