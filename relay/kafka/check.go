package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay"
)

// shortestAge is the shortest recommended retention: consumers may be down for a weekend.
const shortestAge = 3 * 24 * time.Hour

// CheckRoute refuses a destination that can never be a topic's name.
func (s *Sink) CheckRoute(r relay.Route) error {
	for _, d := range r.Destinations() {
		if err := checkTopic(strings.ReplaceAll(d, "*", "x")); err != nil {
			return invalid.Field("Destination", "%q: %s", r.Destination, err)
		}
	}
	return nil
}

// Check implements [relay.Sink]. It does not check topics with placeholders, a * or >, in their names.
func (s *Sink) Check(ctx context.Context, destinations []string) ([]relay.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	isOpen := func(name string) bool { return strings.ContainsAny(name, "*>") }
	names := slices.Compact(slices.Sorted(slices.Values(destinations)))
	open := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !isOpen(name) })
	names = slices.DeleteFunc(names, isOpen)
	findings := relay.NotChecked(open)
	if len(names) == 0 {
		return findings, nil
	}
	admin := kadm.NewClient(c.Client)
	topics, err := admin.ListTopics(ctx, names...)
	if err != nil {
		return nil, away(fmt.Errorf("look at topics: %w", err))
	}
	var there []string
	for _, name := range slices.Sorted(maps.Keys(topics)) {
		found := ofTopic(topics[name])
		findings = append(findings, found...)
		if topics[name].Err == nil {
			there = append(there, name)
		}
	}
	if len(there) == 0 {
		return findings, nil
	}
	configs, err := admin.DescribeTopicConfigs(ctx, there...)
	if err != nil && len(configs) == 0 {
		return nil, away(fmt.Errorf("look at the settings of topics: %w", err))
	}
	slices.SortFunc(configs, func(a, b kadm.ResourceConfig) int { return strings.Compare(a.Name, b.Name) })
	for _, config := range configs {
		findings = append(findings, s.ofSettings(config, topics[config.Name])...)
	}
	return findings, nil
}

// ofTopic returns the findings about the topic itself.
func ofTopic(topic kadm.TopicDetail) []relay.Finding {
	what := "topic " + topic.Topic
	switch {
	case errors.Is(topic.Err, kerr.UnknownTopicOrPartition):
		return []relay.Finding{{
			Severity: relay.SeverityProblem, What: "there is no " + what,
			Remedy: "create it: until then its messages wait",
		}}
	case errors.Is(topic.Err, kerr.TopicAuthorizationFailed):
		return []relay.Finding{{
			Severity: relay.SeverityWarning, What: "we may not look at " + what,
			Remedy: "allow the user Describe and Write",
		}}
	case topic.Err != nil:
		return []relay.Finding{{
			Severity: relay.SeverityWarning, What: fmt.Sprintf("%s: %v", what, topic.Err),
			Remedy: "look at the brokers",
		}}
	}
	var all []relay.Finding
	for _, p := range topic.Partitions.Sorted() {
		if p.Err != nil || p.Leader < 0 {
			all = append(all, relay.Finding{
				Severity: relay.SeverityProblem,
				What:     fmt.Sprintf("%s: partition %d has no leader", what, p.Partition), Remedy: "look at the brokers",
			})
		}
	}
	if topic.Partitions.NumReplicas() < 2 {
		all = append(all, relay.Finding{Severity: relay.SeverityNote, What: what +
			" has one replica: a lost disk loses every message", Remedy: "use a replication factor of 3"})
	}
	return all
}

// ofSettings returns the findings about a topic's settings.
func (s *Sink) ofSettings(config kadm.ResourceConfig, topic kadm.TopicDetail) (all []relay.Finding) {
	what := "topic " + config.Name
	if config.Err != nil {
		return []relay.Finding{
			{
				Severity: relay.SeverityNote,
				What:     fmt.Sprintf("we may not see the settings of %s: %v", what, config.Err),
				Remedy:   "allow the user DescribeConfigs",
			},
		}
	}
	value := map[string]string{}
	for _, c := range config.Configs {
		value[c.Key] = c.MaybeValue()
	}
	add := func(when bool, severity relay.Severity, what, remedy string) {
		if when {
			all = append(all, relay.Finding{
				Severity: severity, What: "topic " + config.Name + ": " + what,
				Remedy: remedy,
			})
		}
	}
	insync, _ := strconv.Atoi(value["min.insync.replicas"])
	add(insync < 2 && topic.Partitions.NumReplicas() > 1, relay.SeverityWarning,
		fmt.Sprintf("min.insync.replicas is %d: a message is acknowledged when one broker has it", insync),
		"set it to 2")
	add(insync > topic.Partitions.NumReplicas(), relay.SeverityProblem,
		fmt.Sprintf("min.insync.replicas is %d, and there are %d replicas: nothing is taken", insync,
			topic.Partitions.NumReplicas()), "set it lower")
	add(value["unclean.leader.election.enable"] == "true", relay.SeverityWarning,
		"unclean.leader.election.enable is true: a broker that lacks acknowledged messages can become the leader, and they are lost", "set it to false")
	most, err := strconv.Atoi(value["max.message.bytes"])
	add(err == nil && most < s.config.MaxBytes, relay.SeverityWarning,
		fmt.Sprintf("max.message.bytes is %d, less than the sink's MaxBytes, %d: batches that are refused are sent again one by one", most, s.config.MaxBytes),
		"raise it, or set MaxBytes lower")
	kept, err := strconv.ParseInt(value["retention.ms"], 10, 64)
	age := time.Duration(kept) * time.Millisecond
	add(err == nil && kept >= 0 && kept < shortestAge.Milliseconds(), relay.SeverityWarning,
		fmt.Sprintf("retention.ms is %d (%s): a consumer that is away for longer misses messages", kept, age),
		"set it longer")
	bytes, err := strconv.ParseInt(value["retention.bytes"], 10, 64)
	add(err == nil && bytes >= 0, relay.SeverityWarning,
		fmt.Sprintf("retention.bytes is %d: beyond that it deletes messages of a partition that no consumer has read",
			bytes), "set it to -1")
	add(strings.Contains(value["cleanup.policy"], "compact"), relay.SeverityNote,
		"cleanup.policy is compact: of each key the last message is kept, and a message without a key is refused",
		"set it to delete, unless that is meant")
	return all
}
