package relay

import (
	"context"
	"errors"
	"time"
)

// Message is what a sink publishes. Its ID is the same on every attempt and after every
// crash, and so a broker or consumer can drop repeats by it.
type Message struct {
	ID          string
	Destination string // the subject, topic, stream, exchange and routing key, or URL
	Key         string // "": in no order
	ContentType string
	Headers     []Header // attributes of CloudEvents, trace context, the producer's own; not to be changed
	Body        []byte   // exactly as the producer gave it, and not to be changed
	At          time.Time
	Position    int64 // in the log; 0 for one that is not of the log
}

// Header is a header of a message. Names are unique within a message.
type Header struct{ Name, Value string }

// A Sink publishes messages to a broker. Its methods may be called concurrently, and may wait
// for each other; Close is called after everything.
type Sink interface {
	// Publish sends messages in order and returns an outcome for each of them:
	//
	//	nil                 the broker has it, as durably as it promises
	//	[*RefusedError]     the broker has examined and rejected it: to send it again changes nothing
	//	[*UnavailableError] the broker, or the message's destination, takes nothing now: this says nothing about the message
	//	[ErrNotTried]       not sent, because one before it was not accepted, or the time of ctx did not suffice
	//	any other           unknown whether it was stored: it is sent again with the same ID. See [ErrMaybeAway]
	//
	// After the first outcome of a key that is not nil the later messages of that key are
	// ErrNotTried, or repeat the first outcome if they were under way; none of them is stored.
	// Publish returns soon after ctx ends; what had no answer by then is unknown. A sink that does
	// not return for two seconds has a fault: it stands still, and is not called until it has.
	Publish(ctx context.Context, batch []Message) []error

	// Limits are those of the broker, as far as they are known.
	Limits() Limits

	// Probe returns nil if the broker can be published to, and publishes nothing.
	Probe(ctx context.Context) error

	// Check returns what an operator should know about the broker's settings.
	Check(ctx context.Context, destinations []string) ([]Finding, error)

	// Close releases connections. Publish has returned before.
	Close() error
}

// A RouteChecker is a sink that some routes cannot lead to.
type RouteChecker interface {
	// CheckRoute returns why a route, which is valid, cannot lead to the sink.
	CheckRoute(Route) error
}

// Limits are what a broker takes at most; 0 is unknown.
type Limits struct {
	Bytes       int // of a message's body and headers together
	HeaderBytes int
}

// Finding is something about a broker's settings that can lose, repeat or delay messages.
type Finding struct {
	Severity Severity
	What     string // in a sentence, with the setting and its value
	Remedy   string
}

// Severity is how bad a [Finding] is.
type Severity string

const (
	Problem Severity = "problem" // messages will be lost or refused
	Warning Severity = "warning" // messages may be, when something else fails
	Note    Severity = "note"
)

// Codes of what a broker answered, in metrics, logs and outbox.sinks.
const (
	CodeRefused        = "relay_refused"         // for a reason that no other code names
	CodeTooLarge       = "relay_too_large"       // the message, or its headers
	CodeForbidden      = "relay_forbidden"       // our credentials may not publish there
	CodeNoDestination  = "relay_no_destination"  // there is no such stream, topic or queue
	CodeBadDestination = "relay_bad_destination" // the template gives no valid name
	CodeUnavailable    = "relay_unavailable"     // the broker cannot be reached, or takes nothing
	CodeFull           = "relay_full"            // a limit of the destination
	CodeUnanswered     = "relay_unanswered"      // the broker did not say whether it has the message
	CodeReplay         = "relay_replay"          // nothing new is published while a replay runs that was asked for so
	CodeGaps           = "relay_gaps"            // nothing newer is read: open transactions leave too many gaps
	CodeStuck          = "relay_stuck"           // what the broker refuses cannot become a job: there are too many
)

// ErrNotTried is the outcome of a message that was not sent.
var ErrNotTried = errors.New("not tried: a message before it was not accepted")

// ErrMaybeAway is wrapped by an outcome that is unknown and may be an outage, such as a proxy's answer for a broker
// that it does not reach or wait for: the message may as well be what the broker fails at. In the log that shows when
// another message is tried. A refused message that is tried again spends no attempt on it, unless later ones of its key
// wait for its attempts ([Skip]).
var ErrMaybeAway = errors.New("the broker may be away")

// RefusedError is the outcome of a message that the broker will never take as it is.
type RefusedError struct {
	Code string
	Err  error // the client's
}

func (e *RefusedError) Error() string { return "refused (" + e.Code + "): " + e.Err.Error() }

// Unwrap is the client's error.
func (e *RefusedError) Unwrap() error { return e.Err }

// UnavailableError is the outcome of a message that was not accepted for a reason that has
// nothing to do with it.
type UnavailableError struct {
	Code string
	Err  error // the client's
}

func (e *UnavailableError) Error() string { return "unavailable (" + e.Code + "): " + e.Err.Error() }

// Unwrap is the client's error.
func (e *UnavailableError) Unwrap() error { return e.Err }
