package watch

import (
	"bytes"
	"cmp"
	"encoding/json"
	"time"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Position is how far a reader has come: [ParsePosition] parses the text of Batch.After. The zero Position means none.
type Position = changefeed.Position

// ParsePosition parses a position's text. Its error is an [outbox.InvalidError].
func ParsePosition(text string) (Position, error) { return changefeed.ParsePosition(text) }

// A Filter removes changes of a feed from a reader's stream. It cannot add any: the feed determines whose jobs they
// are.
type Filter struct {
	Kind, Queue string                 // "" means any
	Statuses    map[outbox.Status]bool // nil means any
	Jobs        map[outbox.ID]bool     // nil means any
	// Most is how many changes per look the reader wants at most: if no reader of a feed wants more, a larger look
	// becomes a resync, and the next look comes later. 0 means as many as possible.
	Most int
}

func (w Filter) most(atMost int) int {
	if w.Most == 0 {
		return atMost
	}
	return min(w.Most, atMost)
}

func (w Filter) matchesAll() bool {
	return w.Kind == "" && w.Queue == "" && w.Statuses == nil && w.Jobs == nil
}

func (w Filter) matches(c changefeed.Change) bool {
	return (w.Kind == "" || w.Kind == c.Kind) && (w.Queue == "" || w.Queue == c.Queue) &&
		(w.Statuses == nil || w.Statuses[c.Status]) && (w.Jobs == nil || w.Jobs[c.ID])
}

// JobChange is what GET /changes sends about a job: its present state.
type JobChange struct {
	ID         string       `json:"id" format:"uuid"`
	Tenant     string       `json:"tenant,omitempty" format:"uuid" doc:"For tokens of all tenants that do not ask for one"`
	Kind       string       `json:"kind"`
	Queue      string       `json:"queue"`
	Status     string       `json:"status"`
	Epoch      int64        `json:"epoch" doc:"Rises with every attempt and whatever ends one"`
	Attempt    int          `json:"attempt"`
	FinishedAt time.Time    `json:"finishedAt,omitzero"`
	Error      *ChangeError `json:"error,omitempty" doc:"Of the latest failed attempt"`
}

// ChangeError is the error of a failed attempt, without its message.
type ChangeError struct {
	Code string `json:"code"`
}

// Batch is the result of one poll of the database.
type Batch struct {
	changes []change
	Resync  bool     // changes may be missing
	AtLeast int      // how many, with Resync; 0 if unknown
	After   Position // position of a reader that has read all of it
	Text    []byte   // all of it as server-sent events; the last has the position as its id
}

type change struct {
	changefeed.Change
	data []byte // JSON of a JobChange
}

// newBatch encodes the changes that were found.
func newBatch(tenant outbox.ID, changes []changefeed.Change, after Position) *Batch {
	b := &Batch{After: after, changes: encoded(tenant, changes)}
	b.write()
	return b
}

func encoded(tenant outbox.ID, changes []changefeed.Change) []change {
	all := make([]change, len(changes))
	for i, c := range changes {
		e := JobChange{
			ID: c.ID.String(), Kind: c.Kind, Queue: c.Queue, Status: string(c.Status), Epoch: c.Epoch,
			Attempt: c.Attempt, FinishedAt: operator.Presentable(c.FinishedAt),
		}
		if tenant.IsZero() {
			e.Tenant = c.Tenant.String()
		}
		if c.ErrorCode != "" {
			e.Error = &ChangeError{Code: c.ErrorCode}
		}
		all[i] = change{c, encodeData(e)}
	}
	return all
}

// sampled is how many of the changes found a resync has; its text has none.
const sampled = 100

// resync returns a batch that only reports that changes may be missing.
func resync(after Position) *Batch {
	var text bytes.Buffer
	WriteEvent(&text, "resync", after.String(), struct{}{})
	return &Batch{Resync: true, After: after, Text: text.Bytes()}
}

// write makes the text. Only the last event has an id: a client that loses the connection within the batch is sent all
// of it again.
func (b *Batch) write() {
	var text bytes.Buffer
	for i, e := range b.changes {
		id := ""
		if i == len(b.changes)-1 {
			id = b.After.String()
		}
		writeData(&text, "job", id, e.data)
	}
	b.Text = text.Bytes()
}

// matching returns the part of a batch that passes a filter. Its position is the same, even if nothing is left. A
// resync is sent to every reader, because it is unknown which changes are missing.
func (b *Batch) matching(w Filter) *Batch {
	if b.Resync || w.matchesAll() {
		return b
	}
	part := &Batch{After: b.After}
	for _, e := range b.changes {
		if w.matches(e.Change) {
			part.changes = append(part.changes, e)
		}
	}
	part.write()
	return part
}

// Len returns how many changes the batch has, or stands for.
func (b *Batch) Len() int { return cmp.Or(b.AtLeast, len(b.changes)) }

// Sample returns the last n of the batch's changes, each as JSON of a [JobChange].
func (b *Batch) Sample(n int) (sample []json.RawMessage) {
	for _, c := range b.changes[max(0, len(b.changes)-n):] {
		sample = append(sample, c.data)
	}
	return sample
}

// WriteEvent writes a server-sent event.
func WriteEvent(to *bytes.Buffer, name, id string, data any) {
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
