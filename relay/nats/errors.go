package nats

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// These are codes of JetStream's errors, few of which the client names.
const (
	accountLimit      = 10002
	insufficient      = 10023
	memoryLimit       = 10028
	storageLimit      = 10047
	messageTooLarge   = 10054
	storeFailed       = 10077 // a limit of the stream is reached, or its files cannot be written
	headersTooLarge   = 10097
	sealed            = 10109
	duplicateInFlight = 10158
	sequenceNotReady  = 10163
	atomicDisabled    = 10174
	ingestDisabled    = 10205
	tooManyRequests   = 429 // an HTTP-like status
)

// errNoStream is the client's error: no stream takes the subject, or its leader is being elected.
var errNoStream = jetstream.ErrNoStreamResponse

// ack is JetStream's answer to a message, or to a run of them.
type ack struct {
	Stream    string              `json:"stream"`
	Duplicate bool                `json:"duplicate"`
	Count     int                 `json:"count"` // messages of a run
	Error     *jetstream.APIError `json:"error"`

	// These are set by fast ingest during a run.
	Type     string `json:"type"`
	Sequence int    `json:"seq"` // in the run, if Type is set
}

// parse parses an answer. Its error concerns what was sent, and is classified.
func parse(m *nats.Msg) (ack, error) {
	if noResponders(m) {
		return ack{}, classify(errNoStream)
	}
	var a ack
	if err := json.Unmarshal(m.Data, &a); err != nil {
		return ack{}, fmt.Errorf("%w: %w", jetstream.ErrInvalidJSAck, err)
	}
	switch {
	case a.Type != "":
		return a, nil
	case a.Error != nil:
		return a, classify(a.Error)
	case a.Stream == "":
		return ack{}, jetstream.ErrInvalidJSAck
	}
	return a, nil
}

// classify returns the outcome of a message for an error of the client or the server. An error that is neither a
// refusal nor unavailability leaves the message unknown.
func classify(err error) error {
	refused := func(code string) error { return &relay.RefusedError{Code: code, Err: err} }
	unavailable := func(code string) error { return &relay.UnavailableError{Code: code, Err: err} }
	switch {
	case errors.Is(err, nats.ErrMaxPayload):
		return refused(relay.CodeTooLarge)
	case errors.Is(err, nats.ErrBadHeaderMsg):
		return refused(relay.CodeRefused)
	case errors.Is(err, nats.ErrBadSubject):
		return refused(relay.CodeBadDestination)
	case errors.Is(err, nats.ErrPermissionViolation):
		return refused(relay.CodeForbidden)
	case errors.Is(err, errNoStream):
		return unavailable(relay.CodeNoDestination)
	case errors.Is(err, nats.ErrConnectionClosed), errors.Is(err, nats.ErrHeadersNotSupported):
		return unavailable(relay.CodeUnavailable)
	}
	api, ok := errors.AsType[*jetstream.APIError](err)
	if !ok {
		return err
	}
	switch api.ErrorCode {
	case messageTooLarge, headersTooLarge:
		return refused(relay.CodeTooLarge)
	case storeFailed, accountLimit, insufficient, memoryLimit, storageLimit:
		return unavailable(relay.CodeFull)
	case sealed:
		return acceptsNothing(err)
	case duplicateInFlight, sequenceNotReady:
		return err
	}
	if api.Code >= 500 || api.Code == tooManyRequests {
		return acceptsNothing(err)
	}
	return refused(relay.CodeRefused)
}

// acceptsNothing returns the outcome of messages to a stream that accepts none, while others of the server may.
func acceptsNothing(err error) error {
	return &relay.UnavailableError{Code: relay.CodeNoLeader, Err: err}
}

// isCode reports whether err is a JetStream error with this code.
func isCode(err error, code jetstream.ErrorCode) bool {
	api, ok := errors.AsType[*jetstream.APIError](err)
	return ok && api.ErrorCode == code
}

// forbiddenTo returns the outcome of messages to a subject for which the sink has no permission.
func forbiddenTo(subject string) error {
	return classify(fmt.Errorf("%w: publish to %s", nats.ErrPermissionViolation, subject))
}

// away returns the outcome of messages that were not sent because the server cannot be reached.
func away(err error) error {
	code := relay.CodeUnavailable
	for _, denied := range []error{
		nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired,
		nats.ErrPermissionViolation,
	} {
		if errors.Is(err, denied) {
			code = relay.CodeForbidden
		}
	}
	if credentials.IsUntrusted(err) {
		code = relay.CodeForbidden
	}
	return &relay.UnavailableError{Code: code, Err: err}
}
