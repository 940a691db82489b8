package relay

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Message is what a sink publishes. Its ID is the same on every attempt and after every crash, so a broker or
// consumer can use it to drop repeats.
type Message struct {
	ID          string // the same in every attempt
	Destination string // the subject, topic, stream, exchange and routing key, or URL
	Key         string // "" means in no order
	ContentType string
	Headers     []Header  // CloudEvents attributes, trace context, the producer's own; must not be changed
	Body        []byte    // exactly as the producer gave it; must not be changed
	At          time.Time // when the event was stored, by the database's clock
	Position    int64     // in the log; 0 for a message that is not from the log
	// Trial reports that the relay sends this message alone, to learn whether its destination, which has not answered,
	// does now. A sink may ignore it.
	Trial bool
}

// Header is a header of a message. Names are unique within a message.
type Header struct{ Name, Value string }

// A Sink publishes messages to a broker. Its methods may be called concurrently, and may wait for each other; Close is
// called after all others. A sink that executes one call at a time embeds a [Turns], so that a call waits before its
// time begins.
type Sink interface {
	// Publish sends messages in order and returns an outcome for each of them:
	//
	//	nil                 the broker has it, as durably as it promises
	//	[*RefusedError]     the broker has examined and rejected it: to send it again changes nothing
	//	[*UnavailableError] the broker, or the message's destination, takes nothing now: this says nothing about the message
	//	[ErrNotTried]       not sent, because one before it was not accepted, or the time of ctx did not suffice
	//	any other           unknown whether it was stored: it is sent again with the same ID. See [ErrMaybeAway]
	//
	// After the first outcome of a key that is not nil, the later messages of that key are ErrNotTried, or repeat the
	// first outcome if they were already sent; none of them is stored. Publish returns soon after ctx ends; messages
	// without an answer by then are unknown. If Publish panics, or returns a wrong number of outcomes, the whole batch
	// is unknown. A sink that does not return within two seconds is faulty: it is stopped, and not called until it has
	// returned.
	Publish(ctx context.Context, batch []Message) []error

	// Probe returns nil if the broker can be published to, and publishes nothing.
	Probe(ctx context.Context) error

	// Check returns what an operator should know about the broker's settings.
	Check(ctx context.Context, destinations []string) ([]Finding, error)

	// Close releases connections. All calls of Publish have returned before.
	Close() error
}

// A RouteChecker is a sink that does not support every route.
type RouteChecker interface {
	// CheckRoute returns why a valid route cannot lead to the sink.
	CheckRoute(Route) error
}

// A Divider is a sink with destinations of which parts fail on their own, such as the partitions of a topic.
type Divider interface {
	// Part returns the part of its destination that a message is for, or "" as long as that is unknown. It does not
	// wait, and is safe for concurrent use.
	Part(Message) string
}

// A LossReporter is a sink whose broker reports that it has lost messages that it had acknowledged.
type LossReporter interface {
	// DataLosses returns how many times it has done so since the sink was opened. It is safe for concurrent use. The
	// relay only counts them: a replay publishes what is lost again.
	DataLosses() int64
}

// A Finding describes a broker setting that can lose, repeat or delay messages.
type Finding struct {
	Severity Severity
	What     string // a sentence with the setting and its value
	Remedy   string
}

// NotChecked returns a note that a sink has not checked these destinations, because events fill in parts of their
// names. Without destinations it returns nil.
func NotChecked(destinations []string) []Finding {
	if len(destinations) == 0 {
		return nil
	}
	return []Finding{{
		Severity: SeverityNote,
		What: fmt.Sprintf("not checked, because events fill in parts of their names: %s",
			strings.Join(destinations, ", ")),
		Remedy: "see that they exist before their first events; those of the topics in relay.yaml's list are checked",
	}}
}

// Severity grades a [Finding].
type Severity string

const (
	SeverityProblem Severity = "problem" // messages will be lost or refused
	SeverityWarning Severity = "warning" // messages may be lost or refused if something else fails
	SeverityNote    Severity = "note"
)

// These codes classify a broker's answers in metrics, logs and outbox.sinks.
const (
	CodeRefused        = "relay_refused"         // for a reason without a code of its own
	CodeTooLarge       = "relay_too_large"       // the message, or its headers
	CodeForbidden      = "relay_forbidden"       // the sink's credentials may not publish there
	CodeNoDestination  = "relay_no_destination"  // no such stream, topic or queue
	CodeBadDestination = "relay_bad_destination" // the template gives no valid name
	CodeNoRoute        = "relay_no_route"        // the sink has no route for the topic of a held message any more
	CodeUnavailable    = "relay_unavailable"     // the broker cannot be reached, or accepts nothing
	CodeFull           = "relay_full"            // a limit of the destination is reached
	CodeNoLeader       = "relay_no_leader"       // the destination has no leader or replicas, or accepts nothing
	CodeUnanswered     = "relay_unanswered"      // the broker did not confirm whether it has the message
	CodeSilent         = "relay_silent"          // the destination does not confirm messages, and others do
	CodeWaiting        = "relay_waiting"         // nothing newer is read: too many messages wait for destinations
	CodeReplay         = "relay_replay"          // a running replay stops new events, as requested
	CodeHoles          = "relay_holes"           // nothing newer is read: open transactions leave too many holes
	CodeStuck          = "relay_stuck"           // refused messages cannot become jobs: there are too many
)

// ErrNotTried is the outcome of a message that was not sent.
var ErrNotTried = errors.New("not tried: a message before it was not accepted")

// ErrMaybeAway is wrapped by an outcome that is unknown and may be an outage, such as the answer of a proxy that cannot
// reach its broker or does not wait for it; but the message itself may be what the broker fails at. For messages of the
// log, trying another message decides. A refused message that is tried again spends no attempt on this outcome, unless
// later messages of its key wait for its attempts ([RefusedSkip]) and the sink has accepted another message to the same
// destination meanwhile.
var ErrMaybeAway = errors.New("the broker may be away")

// RefusedError is the outcome of a message that the broker will never accept unchanged.
type RefusedError struct {
	Code string
	Err  error // from the client library
}

func (e *RefusedError) Error() string { return "refused (" + e.Code + "): " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnavailableError is the outcome of a message that was not accepted for a reason unrelated to the message.
type UnavailableError struct {
	Code string
	Err  error // from the client library
}

func (e *UnavailableError) Error() string { return "unavailable (" + e.Code + "): " + e.Err.Error() }

// Unwrap returns e.Err.
func (e *UnavailableError) Unwrap() error { return e.Err }

// isOfDestination reports whether an outage with this code is one of a destination: the sink may accept messages to
// others.
func isOfDestination(code string) bool {
	switch code {
	case CodeNoDestination, CodeFull, CodeNoLeader, CodeSilent, CodeWaiting:
		return true
	}
	return false
}
