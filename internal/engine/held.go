package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// HeaderHeld is the header of a job that stands for a message which a sink has refused, or for a later message of the
// same key. Its value is a HeldEvent as JSON.
const HeaderHeld = "posthaste-event"

// HeldEvent holds what a sink's job does not record elsewhere about its event. The query ListHeld reads it, too.
type HeldEvent struct {
	ID       string    `json:"id"`
	Topic    string    `json:"topic"`
	Position int64     `json:"position"`
	At       time.Time `json:"at"`
	Fault    string    `json:"fault,omitempty"` // why no message can be made of it
}

// ParseHeldEvent parses the header.
func ParseHeldEvent(value string) (e HeldEvent, err error) {
	err = json.Unmarshal([]byte(value), &e)
	return e, err
}

// HeldKind returns the kind of a sink's jobs, which is also their queue.
func HeldKind(sink string) string { return "relay:" + sink }

// QueueFault returns "" if a job may be enqueued into the queue. Otherwise it returns what is wrong, to follow the
// field's name. A job in a sink's queue could share a key with its messages, and hold them up or replace them.
// outbox.enqueue in SQL and the policies of outbox.secure have the same rule.
func QueueFault(queue string) string {
	if strings.HasPrefix(queue, HeldKind("")) {
		return fmt.Sprintf("is %.200q: queues that begin with relay: are those of messages that a sink has refused",
			queue)
	}
	return NameFault(queue)
}

// KindFault returns "" if a job of the kind may be enqueued. Otherwise it returns what is wrong, to follow the field's
// name. Only a relay stores jobs of its sinks: it treats an idempotency key of such a kind as one that it has stored
// itself, and waits for a transaction that stores one. outbox.enqueue in SQL and the policies of outbox.secure have the
// same rule.
func KindFault(kind string) string {
	if strings.HasPrefix(kind, HeldKind("")) {
		return fmt.Sprintf("is %.200q: kinds that begin with relay: are those of messages that a sink has refused",
			kind)
	}
	return NameFault(kind)
}
