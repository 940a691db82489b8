package engine

import (
	"encoding/json"
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
