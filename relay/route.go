package relay

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A Route selects events for a sink and sets how they are published. Of a sink's routes, the first that matches the
// event's topic applies; an event that no route matches is not for the sink.
type Route struct {
	// Topics are patterns: a topic itself, "order.*" for the topics that begin with "order.", or "*" for every topic.
	Topics []string
	// Destination is a template: text with the placeholders {topic}, {tenant}, {key}, {id} and {header.NAME}, and for
	// events of jobs {queue}, {kind} and {event}. Each may have a filter: |token makes one token of a NATS subject,
	// |kafka a name of a Kafka topic, |path a segment of a URL's path, |hash(N) a number below N. "" means "{topic}".
	Destination string
	// CloudEvents sets how messages carry the attributes of CloudEvents 1.0; "" means CloudEventsBinary.
	CloudEvents CloudEvents
	// OnRefused sets what happens to a message that the sink refuses; "" means RefusedHold.
	OnRefused OnRefused
	// Preset supplies topics, destination and format; "" means none. See [Preset].
	Preset Preset
}

// OnRefused sets what happens to a message that a sink refuses, and to later messages of its key. Except with
// RefusedDrop, the message becomes a job, which is tried a few times and then becomes a dead letter; like others, it
// can be replayed, unchanged or with another payload, and dismissed. Messages without a key delay no others.
type OnRefused string

const (
	RefusedHold OnRefused = "hold" // later ones wait until somebody has replayed or dismissed the dead letter
	RefusedSkip OnRefused = "skip" // later ones wait while it is tried, but not for the dead letter
	RefusedPark OnRefused = "park" // the key is parked until somebody unblocks it
	RefusedDrop OnRefused = "drop" // it is counted and discarded
)

// onDeath returns the death policy of the message's job.
func (o OnRefused) onDeath() *string {
	switch o {
	case RefusedPark:
		return new(string(outbox.ParkKey))
	case RefusedSkip, RefusedDrop:
		return new(string(outbox.SkipDead))
	}
	return nil
}

// CloudEvents is a content mode of CloudEvents 1.0, or none.
type CloudEvents string

const (
	CloudEventsBinary     CloudEvents = "binary"     // attributes are headers, the body is the payload
	CloudEventsStructured CloudEvents = "structured" // the body is a JSON object with attributes and payload
	CloudEventsOff        CloudEvents = "off"        // no attributes: the producer's headers only
)

// Validate returns the mistakes in a route as [*outbox.InvalidError]s, joined.
func (r Route) Validate() error {
	_, err := compile(r)
	return err
}

// route is a validated Route.
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
		r.CloudEvents = CloudEventsBinary
	case CloudEventsBinary, CloudEventsStructured, CloudEventsOff:
	default:
		errs = append(errs, invalid.Field("CloudEvents", "is %q, want binary, structured or off",
			string(r.CloudEvents)))
	}
	switch r.OnRefused {
	case "":
		r.OnRefused = RefusedHold
	case RefusedHold, RefusedSkip, RefusedPark, RefusedDrop:
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
	return route{r, destination}, errors.Join(append(errs, checkJobs(r, &destination))...)
}

// checkJobs returns an error if a destination or a preset is for events of streamed jobs, and a pattern has none.
func checkJobs(r Route, destination *template) error {
	isOfJobs := r.Preset == PresetPosthaste || r.Preset == PresetTrellis || destination.isOfJobs()
	for _, pattern := range r.Topics {
		if isOfJobs && pattern != "*" && !strings.HasPrefix(pattern, "job.") {
			return invalid.Field("Topics", "pattern %q: the destination or the preset is for events of streamed jobs, "+
				"whose topics begin with job.", pattern)
		}
	}
	return nil
}

func checkPattern(pattern string) error {
	name := strings.TrimSuffix(pattern, ".*")
	if pattern == "*" || name != "" && !strings.ContainsAny(name, "* \t") {
		return nil
	}
	return invalid.Field("Topics", "pattern %q: want a topic, one that ends in .* or *", pattern)
}

// has reports whether the route matches the topic.
func (r *route) has(topic string) bool {
	for _, pattern := range r.Topics {
		if prefix, open := strings.CutSuffix(pattern, "*"); pattern == topic ||
			open && strings.HasPrefix(topic, prefix) {
			return true
		}
	}
	return false
}

// CheckRoutes returns a problem for each of a sink's routes that never applies, because an earlier one has all of its
// topics. Such a route harms no other.
func CheckRoutes(routes []Route) (findings []Finding) {
	compiled, err := compileAll(routes)
	if err != nil {
		return nil // New reports it
	}
	for i, r := range compiled {
		before := slices.IndexFunc(compiled[:i], func(before route) bool {
			return !slices.ContainsFunc(r.Topics, func(pattern string) bool { return !before.has(pattern) })
		})
		if before >= 0 {
			findings = append(findings, Finding{
				Severity: SeverityProblem,
				What:     fmt.Sprintf("route %d of the sink never applies: route %d has all of its topics", i+1, before+1),
				Remedy:   "put the route before that one, or remove it",
			})
		}
	}
	return findings
}

// routeOf returns the first of the routes that matches the topic, or nil.
func routeOf(routes []route, topic string) *route {
	for i := range routes {
		if routes[i].has(topic) {
			return &routes[i]
		}
	}
	return nil
}

// compileAll validates and compiles the routes of a sink.
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
