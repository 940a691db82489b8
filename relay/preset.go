package relay

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/lifecycle"
)

// A Preset supplies destinations, headers and bodies in a format that other systems define: a route with a preset needs
// neither topics nor a destination. All but PresetDebezium are for the events of streamed jobs (package lifecycle).
type Preset string

const (
	// PresetPosthaste publishes events as they are stored.
	PresetPosthaste Preset = "posthaste"
	// PresetTrellis publishes in Trellis's format: its subjects, and JobEventWire as the body.
	PresetTrellis Preset = "trellis"
	// PresetDebezium publishes all topics as Debezium's outbox event router does: to outbox.event.TOPIC, with the
	// event's id as the header id, and without CloudEvents attributes. The header type is that of the view
	// outbox.debezium_events: the producer's own, or the topic.
	PresetDebezium Preset = "debezium"
)

// presets maps each preset to its destination.
var presets = map[Preset]string{
	PresetPosthaste: "posthaste.jobs.{tenant}.{queue|token}.{kind|token}.{key|token}.{event}",
	PresetTrellis:   "trellis.jobs.{queue|token}.{kind|token}.{key|token}.{event}",
	PresetDebezium:  "outbox.event.{topic|kafka}",
}

// withPreset fills in the fields that the route leaves to its preset.
func (r Route) withPreset() (Route, error) {
	if r.Preset == "" {
		return r, nil
	}
	destination, ok := presets[r.Preset]
	if !ok {
		return r, invalid.Field("Preset", "is %q, want one of %q", string(r.Preset), slices.Sorted(maps.Keys(presets)))
	}
	if len(r.Topics) == 0 {
		r.Topics = []string{"job.*"}
		if r.Preset == PresetDebezium {
			r.Topics = []string{"*"}
		}
	}
	if r.CloudEvents == "" && r.Preset == PresetDebezium {
		r.CloudEvents = CloudEventsOff
	}
	if r.Destination == "" {
		r.Destination = destination
	}
	return r, nil
}

// asPreset returns the event in the form of the route's preset.
func (r *route) asPreset(e *Event) (*Event, error) {
	switch r.Preset {
	case PresetDebezium:
		return asDebezium(e), nil
	case PresetTrellis:
	default:
		return e, nil
	}
	of, err := lifecycle.Decode(e.Payload)
	if err != nil {
		return nil, err
	}
	changed := *e
	changed.made = nil
	changed.Payload, changed.Headers, err = lifecycle.EncodeTrellis(of, e.Headers)
	return &changed, err
}

// asDebezium returns the event with the headers of Debezium's outbox event router.
func asDebezium(e *Event) *Event {
	changed := *e
	changed.made = nil
	changed.Headers = maps.Clone(e.Headers)
	if changed.Headers == nil {
		changed.Headers = map[string]string{}
	}
	maps.DeleteFunc(changed.Headers, func(name, _ string) bool { return strings.EqualFold(name, "id") })
	changed.Headers["id"] = e.messageID()
	if changed.Headers["type"] == "" {
		changed.Headers["type"] = e.Topic
	}
	return &changed
}

// jobField returns the function that fills in a placeholder from an event of a streamed job.
func jobField(name string) func(*Event) (string, error) {
	return func(e *Event) (string, error) {
		event, ok := strings.CutPrefix(e.Topic, "job.")
		if !ok {
			return "", fmt.Errorf("{%s} is of events of jobs, not of topic %q", name, e.Topic)
		}
		if name == "event" {
			return event, nil
		}
		of, err := lifecycle.Decode(e.Payload)
		if err != nil {
			return "", err
		}
		if name == "queue" {
			return of.Queue, nil
		}
		return of.Kind, nil
	}
}
