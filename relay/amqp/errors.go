package amqp

import (
	"errors"
	"fmt"
	"strings"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// errNotRouted is the reason for which a message was returned: no queue is bound for its routing key, or there is no
// such queue.
var errNotRouted = errors.New("no queue takes it")

// exception returns the outcome of the one unanswered message, given the server's reason for closing the channel.
func exception(err error) error {
	reason, ok := errors.AsType[*amqp.Error](err)
	if !ok || !reason.Server {
		return err
	}
	switch reason.Code {
	case amqp.NotFound:
		return &relay.UnavailableError{Code: relay.CodeNoDestination, Err: err}
	case amqp.AccessRefused:
		return &relay.RefusedError{Code: relay.CodeForbidden, Err: err}
	case amqp.PreconditionFailed:
		if strings.Contains(reason.Reason, "message size") {
			return &relay.RefusedError{Code: relay.CodeTooLarge, Err: err}
		}
		return &relay.RefusedError{Code: relay.CodeRefused, Err: err}
	}
	return err // a fault or shutdown of the server does not tell what it has
}

// away returns the outcome of messages that were not sent because the server cannot be reached.
func away(err error) error {
	code := relay.CodeUnavailable
	if reason, ok := errors.AsType[*amqp.Error](err); ok {
		switch reason.Code {
		case amqp.AccessRefused, amqp.NotAllowed:
			code = relay.CodeForbidden
		}
	}
	if credentials.IsUntrusted(err) {
		code = relay.CodeForbidden
	}
	return &relay.UnavailableError{Code: code, Err: err}
}

// unroutable returns the outcome of a message that the server returned.
func unroutable(r amqp.Return) error {
	return &relay.UnavailableError{
		Code: relay.CodeNoDestination, Err: fmt.Errorf("exchange %q, routing key %q: %w (%d %s)", r.Exchange,
			r.RoutingKey, errNotRouted, r.ReplyCode, r.ReplyText),
	}
}

// full returns the outcome of a message that a queue rejected.
func full(destination string) error {
	return &relay.UnavailableError{
		Code: relay.CodeFull,
		Err: fmt.Errorf("a queue of %q rejected it (basic.nack): it has reached its limit, or cannot write",
			destination),
	}
}
