package amqp

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/relay"
)

const (
	maxShort = 255 // longest name, in bytes; also of most properties

	// reserve is the part of a frame besides the headers: its own bytes, and the other properties at their longest.
	reserve = 1024

	ours, theirs = "ce-", "cloudEvents:" // prefixes of CloudEvents attributes, here and in AMQP
)

// encoded is a message in AMQP's form.
type encoded struct {
	exchange, key string
	amqp.Publishing
}

// split returns the exchange and routing key of a destination.
func split(destination string) (exchange, key string, err error) {
	exchange, key, found := strings.Cut(destination, "/")
	switch {
	case !found:
		return "", "", fmt.Errorf(
			"destination %q: want an exchange, / and a routing key, such as /queue or events/order.paid", destination)
	case len(exchange) > maxShort || len(key) > maxShort:
		return "", "", fmt.Errorf("destination %q: the exchange or the routing key has more than %d bytes", destination,
			maxShort)
	case exchange == "" && key == "":
		return "", "", fmt.Errorf("destination %q names neither an exchange nor a queue", destination)
	}
	return exchange, key, nil
}

// encode returns a message in frames of the given size. Its error is a [*relay.RefusedError] for messages that would
// end the channel or the connection with a less helpful error.
func encode(m *relay.Message, frame int) (e encoded, err error) {
	if e.exchange, e.key, err = split(m.Destination); err != nil {
		return e, &relay.RefusedError{Code: relay.CodeBadDestination, Err: err}
	}
	if len(m.ID) > maxShort || len(m.ContentType) > maxShort {
		return e, &relay.RefusedError{
			Code: relay.CodeRefused,
			Err:  fmt.Errorf("the ID or content type has more than %d bytes", maxShort),
		}
	}
	headers := make(amqp.Table, len(m.Headers))
	bytes := 0
	for _, h := range m.Headers {
		name := h.Name
		if attribute, ok := strings.CutPrefix(name, ours); ok {
			name = theirs + attribute
		}
		if err := checkName(name); err != nil {
			return e, &relay.RefusedError{Code: relay.CodeRefused, Err: err}
		}
		if _, there := headers[name]; there {
			continue // the relay's own come first and take precedence
		}
		headers[name] = h.Value
		bytes += 1 + len(name) + 1 + 4 + len(h.Value) // a length, the name, a type, a length, the value
	}
	if bytes > frame-reserve {
		return e, &relay.RefusedError{
			Code: relay.CodeTooLarge,
			Err:  fmt.Errorf("the headers have %d bytes, and a frame takes %d", bytes, frame-reserve),
		}
	}
	e.Publishing = amqp.Publishing{
		MessageId: m.ID, ContentType: m.ContentType, Headers: headers, Body: m.Body, Timestamp: m.At,
		DeliveryMode: amqp.Persistent,
	}
	return e, nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("a header has no name")
	case len(name) > maxShort:
		return fmt.Errorf("header %.40q…: a name has at most %d bytes", name, maxShort)
	case name == "CC" || name == "BCC":
		return fmt.Errorf("header %q: the server would send the message elsewhere, too", name)
	}
	return nil
}

// size returns what a message counts for while it has no answer.
func (e *encoded) size() int { return len(e.Body) + reserve }
