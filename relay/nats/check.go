package nats

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay"
)

const (
	// shortestWindow is the shortest recommended duplicate window: longer than a takeover by another process takes,
	// with time for a restart of the server.
	shortestWindow = 2 * time.Minute

	// shortestAge is the shortest recommended retention: consumers may be down for a weekend.
	shortestAge = 3 * 24 * time.Hour
)

var _ relay.RouteChecker = (*Sink)(nil)

// CheckRoute refuses a destination that can never be a subject, whatever an event fills in.
func (s *Sink) CheckRoute(r relay.Route) error {
	for _, subject := range r.Destinations() {
		if err := checkSubject(strings.ReplaceAll(subject, "*", "x")); err != nil {
			return invalid.Field("Destination", "%q: %s", r.Destination, err)
		}
	}
	return nil
}

// Check implements [relay.Sink]. A destination is a subject, in which * and > may stand for what events fill in.
func (s *Sink) Check(ctx context.Context, destinations []string) ([]relay.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	var findings []relay.Finding
	seen := map[string]bool{}
	files := false
	for _, subject := range destinations {
		streams, err := c.find(ctx, subject, nil)
		switch {
		case errors.Is(err, nats.ErrPermissionViolation):
			findings = append(findings, relay.Finding{
				Severity: relay.SeverityWarning,
				What:     fmt.Sprintf("we may not ask which stream takes %s, nor for its settings", subject),
				Remedy: "let the user publish to " + apiNames + " and " + apiStream +
					"*: the faster ways to publish need it",
			})
			continue
		case err != nil:
			return nil, away(err)
		case len(streams) == 0:
			findings = append(findings, relay.Finding{
				Severity: relay.SeverityProblem, What: "no stream takes " + subject,
				Remedy: "create a stream with this subject, such as: nats stream add NAME --subjects '" + subject +
					"' --defaults",
			})
		}
		for _, found := range streams {
			if !seen[found.name] {
				seen[found.name] = true
				findings = append(findings, found.findings()...)
				files = files || found.config.Storage == jetstream.FileStorage
			}
		}
	}
	if files {
		findings = append(findings, relay.Finding{
			Severity: relay.SeverityNote,
			What:     "unless the server has sync_interval: always, which no client can see, it acknowledges messages before they are safe on its disk",
			Remedy:   "set it, or know that after a crash of the machine a replay is needed",
		})
	}
	return findings, nil
}

// findings returns the findings about one stream.
func (s *stream) findings() (all []relay.Finding) {
	c := &s.config
	add := func(when bool, severity relay.Severity, what, remedy string) {
		if when {
			all = append(all, relay.Finding{Severity: severity, What: "stream " + s.name + ": " + what, Remedy: remedy})
		}
	}
	add(c.NoAck, relay.SeverityProblem, "no_ack is set, so nothing that is published to it is acknowledged", "unset it")
	add(c.Sealed, relay.SeverityProblem, "it is sealed and takes no messages", "use another stream")
	limited := c.MaxMsgs > 0 || c.MaxBytes > 0 || c.MaxMsgsPerSubject > 0
	add(limited && c.Discard == jetstream.DiscardOld, relay.SeverityWarning,
		"discard is old: at its limits it deletes messages that no consumer has read",
		"set discard to new: then publishing waits")
	add(c.MaxAge > 0 && c.MaxAge < shortestAge, relay.SeverityWarning,
		fmt.Sprintf("max_age is %s: a consumer that is away for longer misses messages", c.MaxAge), "set it longer")
	interest := c.Retention == jetstream.InterestPolicy
	add(interest && s.consumers == 0, relay.SeverityProblem,
		"retention is interest, and it has no consumer: it drops every message",
		"create the consumers, or set retention to limits")
	add(interest && s.consumers > 0, relay.SeverityWarning,
		"retention is interest: a consumer that is created later misses what was published before",
		"set it to limits, unless that is meant")
	add(c.Retention == jetstream.WorkQueuePolicy, relay.SeverityNote,
		"retention is workqueue: a message is gone when one consumer has acknowledged it",
		"set it to limits, unless that is meant")
	add(c.Duplicates < shortestWindow, relay.SeverityWarning,
		fmt.Sprintf("duplicate_window is %s: a message that is sent again later is stored twice", c.Duplicates),
		fmt.Sprintf("set it to %s at least", shortestWindow))
	add(c.PersistMode == jetstream.AsyncPersistMode, relay.SeverityWarning,
		"persist_mode is async: it acknowledges messages before they are written", "set it to default")
	add(c.Storage == jetstream.MemoryStorage, relay.SeverityWarning,
		"its storage is memory: a restart loses every message", "use file storage")
	add(c.Replicas < 2, relay.SeverityNote, "it has one replica: a lost disk loses every message",
		"set num_replicas to 3 on a cluster")
	faster := "set allow_batched (nats-server 2.14)"
	if c.Replicas > 1 {
		faster = "set allow_atomic (nats-server 2.12)"
	}
	add(!ingestsFast(c) && !c.AllowAtomicPublish, relay.SeverityNote,
		"it allows neither atomic batches nor, with one replica, fast ingest, so of each key one message at a time is sent",
		faster)
	return all
}
