package relay

import (
	"fmt"
	"maps"
	"slices"
)

// TopicError is a mistake in a topic, given the routes of all sinks.
type TopicError struct {
	Index  int // of the topic
	Reason string
}

// DestinationsOf returns the names that a sink's routes produce, as [Route.Destinations] does, and those for topics
// that match a pattern of a route.
func DestinationsOf(routes []Route, topics []string) (all []string) {
	for _, r := range routes {
		all = append(all, r.Destinations()...)
	}
	compiled, err := compileAll(routes)
	if err != nil {
		return all // New reports it
	}
	for _, topic := range topics {
		if r := routeOf(compiled, topic); r != nil {
			one := r.Route
			one.Topics = []string{topic}
			all = append(all, one.Destinations()...)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// CheckTopics returns the mistakes in topics: no route of any sink matches the topic, or the topic shares a destination
// with another one because a filter maps both to one name, as |token does for order.paid and order_paid. Invalid routes
// match no topic.
func CheckTopics(topics []string, sinks map[string][]Route) (mistakes []TopicError) {
	routed := map[string]bool{}
	for _, sink := range slices.Sorted(maps.Keys(sinks)) {
		routes, err := compileAll(sinks[sink])
		if err != nil {
			continue
		}
		first := map[string]string{} // the topic with each destination
		for i, topic := range topics {
			r := routeOf(routes, topic)
			if r == nil {
				continue
			}
			routed[topic] = true
			name, err := r.destination.fill(&Event{Topic: topic, Key: "key"})
			if err != nil || !r.destination.spells("topic") {
				continue // depends on a header or its hash, or deliberately maps several topics to one destination
			}
			if other, taken := first[name]; taken && other != topic {
				mistakes = append(mistakes,
					TopicError{i, fmt.Sprintf("%s and %s have the same destination in sink %s, %s", other, topic, sink,
						name)})
			}
			first[name] = topic
		}
	}
	for i, topic := range topics {
		if !routed[topic] {
			mistakes = append(mistakes,
				TopicError{i, fmt.Sprintf("no route has %s: it would be published nowhere", topic)})
		}
	}
	return mistakes
}
