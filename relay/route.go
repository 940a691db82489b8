package relay

import (
	"errors"
	"fmt"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Route says which events go to a sink, and under which name. Of the routes of a sink the
// first that has the event's topic applies; an event that none has is not for the sink.
type Route struct {
	// Topics are patterns: a topic itself, "order.*" for the topics that begin with "order.",
	// or "*" for every topic.
	Topics []string
	// Destination is a template: text with the placeholders {topic}, {tenant}, {key}, {id}
	// and {header.NAME}, and {queue}, {kind} and {event} of events of jobs, each with a filter
	// if wanted: |token makes one token of a NATS subject, |kafka a name of a Kafka topic, |path
	// a segment of a URL's path, |hash(N) a number below N. "" is "{topic}".
	Destination string
	// CloudEvents is how the attributes of CloudEvents 1.0 go with a message; "" is Binary.
	CloudEvents CloudEvents
	// OnRefused is what becomes of a message that the sink refuses; "" is Hold.
	OnRefused OnRefused
	// Preset has the events of streamed jobs under names that others know; "" is none.
	Preset Preset
}

// OnRefused says what becomes of a message that a sink refuses, and of those behind it of its
// key. But for Drop it becomes a job, which is tried a few times and is a dead letter then; it
// can be replayed, as it is or with another payload, and dismissed, as others. Messages without
// a key hold up nothing.
type OnRefused string

const (
	Hold OnRefused = "hold" // those behind it wait until somebody has replayed or dismissed the dead letter
	Skip OnRefused = "skip" // those behind it wait while it is tried, and not for the dead letter
	Park OnRefused = "park" // the key is parked, until somebody unblocks it
	Drop OnRefused = "drop" // it is counted, and gone
)

// onDeath is what the job of a message has of it.
func (o OnRefused) onDeath() *string {
	switch o {
	case Park:
		return new(string(outbox.ParkKey))
	case Skip, Drop:
		return new(string(outbox.SkipDead))
	}
	return nil
}

// CloudEvents is a content mode of CloudEvents 1.0, or none.
type CloudEvents string

const (
	Binary     CloudEvents = "binary"     // attributes are headers, the body is the payload
	Structured CloudEvents = "structured" // the body is a JSON object with attributes and payload
	Off        CloudEvents = "off"        // no attributes: the producer's headers only
)

// Validate returns [*outbox.InvalidError]s, joined, for what is wrong with a route.
func (r Route) Validate() error {
	_, err := compile(r)
	return err
}

// route is a Route that was found to be right.
type route struct {
	Route
	destination template
}

func compile(r Route) (route, error) {
	var errs []error
	r, err := r.withPreset()
	if err != nil {
		errs = append(errs, err)
	}
	if len(r.Topics) == 0 {
		errs = append(errs, invalid.Field("Topics", "is empty: the route has no event; \"*\" has all"))
	}
	for _, pattern := range r.Topics {
		if err := checkPattern(pattern); err != nil {
			errs = append(errs, err)
		}
	}
	switch r.CloudEvents {
	case "":
		r.CloudEvents = Binary
	case Binary, Structured, Off:
	default:
		errs = append(errs, invalid.Field("CloudEvents", "is %q, want binary, structured or off", string(r.CloudEvents)))
	}
	switch r.OnRefused {
	case "":
		r.OnRefused = Hold
	case Hold, Skip, Park, Drop:
	default:
		errs = append(errs, invalid.Field("OnRefused", "is %q, want hold, skip, park or drop", string(r.OnRefused)))
	}
	if r.Destination == "" {
		r.Destination = "{topic}"
	}
	destination, err := parseTemplate(r.Destination)
	if err != nil {
		errs = append(errs, invalid.Field("Destination", "%s", err))
	}
	return route{r, destination}, errors.Join(errs...)
}

func checkPattern(pattern string) error {
	name := strings.TrimSuffix(pattern, ".*")
	if pattern == "*" || name != "" && !strings.ContainsAny(name, "* \t") {
		return nil
	}
	return invalid.Field("Topics", "pattern %q: want a topic, one that ends in .* or *", pattern)
}

// has reports whether the route is for the topic.
func (r *route) has(topic string) bool {
	for _, pattern := range r.Topics {
		if prefix, open := strings.CutSuffix(pattern, "*"); pattern == topic || open && strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// routeOf returns the first of the routes that has the topic, nil if none has.
func routeOf(routes []route, topic string) *route {
	for i := range routes {
		if routes[i].has(topic) {
			return &routes[i]
		}
	}
	return nil
}

// compileAll reads the routes of a sink.
func compileAll(routes []Route) ([]route, error) {
	if len(routes) == 0 {
		return nil, errors.New("no route: nothing would be published")
	}
	compiled := make([]route, len(routes))
	var errs []error
	for i, r := range routes {
		var err error
		if compiled[i], err = compile(r); err != nil {
			errs = append(errs, fmt.Errorf("route %d: %w", i+1, err))
		}
	}
	return compiled, errors.Join(errs...)
}
