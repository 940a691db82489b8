package relay

import (
	"fmt"
	"maps"
	"slices"
)

// TopicError is what is wrong with a topic, given the routes of all sinks.
type TopicError struct {
	Index  int // of the topic
	Reason string
}

// CheckTopics returns what is wrong with topics: that no route of any sink has them, or that
// they share a destination with another one because a filter makes one name of
// both, such as |token of order.paid and order_paid. Routes that are not valid have no topic.
func CheckTopics(topics []string, sinks map[string][]Route) (mistakes []TopicError) {
	routed := map[string]bool{}
	for _, sink := range slices.Sorted(maps.Keys(sinks)) {
		routes, err := compileAll(sinks[sink])
		if err != nil {
			continue
		}
		first := map[string]string{} // the topic with a destination
		for i, topic := range topics {
			r := routeOf(routes, topic)
			if r == nil {
				continue
			}
			routed[topic] = true
			name, err := r.destination.fill(&Event{Topic: topic, Key: "key"})
			if err != nil || !r.destination.spells("topic") {
				continue // with a header, by its hash, or one destination for several topics, as it is meant
			}
			if other, taken := first[name]; taken && other != topic {
				mistakes = append(mistakes, TopicError{i, fmt.Sprintf("%s and %s have the same destination in sink %s, %s", other, topic, sink, name)})
			}
			first[name] = topic
		}
	}
	for i, topic := range topics {
		if !routed[topic] {
			mistakes = append(mistakes, TopicError{i, fmt.Sprintf("no route has %s: it would be published nowhere", topic)})
		}
	}
	return mistakes
}
