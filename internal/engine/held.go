package engine

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// HeaderHeld is the header of a job that is a message which a sink has refused, or one behind it of the same key. Its
// value is a HeldEvent as JSON.
const HeaderHeld = "posthaste-event"

// HeldEvent is what a job of a sink does not say of its event otherwise. The query ListHeld reads it, too.
type HeldEvent struct {
	ID       string    `json:"id"`
	Topic    string    `json:"topic"`
	Position int64     `json:"position"`
	At       time.Time `json:"at"`
	Fault    string    `json:"fault,omitempty"` // why no message can be made of it
}

// ParseHeldEvent reads the header.
func ParseHeldEvent(value string) (e HeldEvent, err error) {
	err = json.Unmarshal([]byte(value), &e)
	return e, err
}

// HeldKind is the kind of these jobs, and their queue.
func HeldKind(sink string) string { return "relay:" + sink }

// KindFault is "" for what the kind of a job can be that is enqueued; for anything else it is what is wrong, after
// the field's name. Only a relay stores jobs of its sinks: it takes an idempotency key of such a kind for one that it
// has stored itself, and waits for a transaction that stores one. outbox.enqueue in SQL and the policies of
// outbox.secure have the same rule.
func KindFault(kind string) string {
	if strings.HasPrefix(kind, HeldKind("")) {
		return fmt.Sprintf("is %.200q: kinds that begin with relay: are those of messages that a sink has refused", kind)
	}
	return NameFault(kind)
}
