package engine

import (
	"encoding/json"
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
