package amqp

import (
	"context"
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/relay"
)

// CheckRoute refuses a destination that can never name an exchange. A route to topics that are themselves exchanges and
// routing keys declares that with the destination {topic}, unless it has no pattern.
func (s *Sink) CheckRoute(r relay.Route) error {
	for _, d := range r.Destinations() {
		if _, _, err := split(d); err != nil && (r.Destination == "" || !strings.Contains(d, "*")) {
			return invalid.Field("Destination", "%q: %s", r.Destination, err)
		}
	}
	return nil
}

// Check implements [relay.Sink]. It does not check names with placeholders, a * or >.
func (s *Sink) Check(ctx context.Context, destinations []string) ([]relay.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer c.guard(ctx)()
	var findings []relay.Finding
	seen := map[string]bool{}
	var open []string
	for _, destination := range destinations {
		exchange, key, err := split(destination)
		if err != nil {
			findings = append(findings, relay.Finding{
				Severity: relay.SeverityProblem, What: err.Error(),
				Remedy: "correct the route's destination",
			})
			continue
		}
		name := exchange + "/"
		if exchange == "" {
			name += key // each queue individually
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		if strings.ContainsAny(name, "*>") {
			open = append(open, destination)
			continue
		}
		found, err := c.look(exchange, key)
		if err != nil {
			return nil, away(err)
		}
		findings = append(findings, found...)
	}
	findings = append(findings, relay.NotChecked(open)...)
	return append(findings, relay.Finding{
		Severity: relay.SeverityNote,
		What:     "no client can see of what type the queues behind an exchange are, nor whether they drop, reject or dead-letter messages",
		Remedy: "use durable quorum queues or streams, and where a length is limited, overflow: reject-publish, " +
			"because drop-head, the default, deletes messages that no consumer has read",
	}), nil
}

// look inspects an exchange, or a queue of the default exchange, on a channel of its own.
func (c *conn) look(exchange, queue string) ([]relay.Finding, error) {
	ch, err := c.amqp.Channel()
	if err != nil {
		return nil, fmt.Errorf("open a channel: %w", err)
	}
	defer func() { _ = ch.Close() }()
	what := fmt.Sprintf("exchange %q", exchange)
	if exchange != "" {
		err = ch.ExchangeDeclarePassive(exchange, amqp.ExchangeTopic, true, false, false, false, nil)
	} else {
		what = fmt.Sprintf("queue %q", queue)
		var q amqp.Queue
		q, err = ch.QueueDeclarePassive(queue, true, false, false, false, nil)
		if err == nil && q.Consumers == 0 {
			return []relay.Finding{
				{
					Severity: relay.SeverityNote,
					What:     fmt.Sprintf("%s has no consumer, and %d messages", what, q.Messages),
					Remedy:   "start one",
				},
			}, nil
		}
	}
	reason, ok := errors.AsType[*amqp.Error](err)
	switch {
	case err == nil:
		return nil, nil
	case ok && reason.Code == amqp.NotFound:
		return []relay.Finding{{
			Severity: relay.SeverityProblem, What: "there is no " + what,
			Remedy: "create it: until then its messages wait",
		}}, nil
	case ok && reason.Server && (reason.Code == amqp.AccessRefused || reason.Code == amqp.ResourceLocked):
		return []relay.Finding{
			{
				Severity: relay.SeverityWarning, What: fmt.Sprintf("we may not look at %s: %s", what, reason.Reason),
				Remedy: "check the user's permissions",
			},
		}, nil
	}
	return nil, fmt.Errorf("look at %s: %w", what, err)
}
