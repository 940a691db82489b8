package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gomodule/redigo/redis"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

const (
	// aborted is the server's answer to EXEC if it has not accepted a command, or does not accept EXEC.
	aborted = "EXECABORT"
	// because precedes the reason if EXEC itself was refused.
	because = "because of: "

	forbidden = "NOPERM"
)

// ofServer lists the first words of errors that say nothing about the message, but that the server accepts none now.
var ofServer = map[string]string{
	"OOM":         relay.CodeFull, // maxmemory, with noeviction
	"MISCONF":     relay.CodeFull, // the server cannot write to its disk
	"READONLY":    relay.CodeUnavailable,
	"LOADING":     relay.CodeUnavailable,
	"MASTERDOWN":  relay.CodeUnavailable,
	"NOREPLICAS":  relay.CodeUnavailable,
	"CLUSTERDOWN": relay.CodeUnavailable,
	"MOVED":       relay.CodeUnavailable,
	"ASK":         relay.CodeUnavailable,
	"TRYAGAIN":    relay.CodeUnavailable,
	"BUSY":        relay.CodeUnavailable,
	"NOAUTH":      relay.CodeForbidden,
	"WRONGPASS":   relay.CodeForbidden,
}

// word returns the first word of a server's error, or "" for an error of the client.
func word(err error) string {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(answer.Error(), " ")
	return first
}

// missing returns the outcome of a message whose stream does not exist.
func missing(m *relay.Message) error {
	return &relay.UnavailableError{Code: relay.CodeNoDestination, Err: fmt.Errorf("%s: %w", m.Destination, errNoStream)}
}

// classify returns the outcome of a message for the server's error. An error that is neither a refusal nor
// unavailability leaves the message unknown.
func classify(err error) error {
	first := word(err)
	if code := ofServer[first]; code != "" {
		return &relay.UnavailableError{Code: code, Err: err}
	}
	switch first {
	case forbidden:
		return &relay.RefusedError{Code: relay.CodeForbidden, Err: err}
	case "WRONGTYPE":
		return &relay.RefusedError{Code: relay.CodeRefused, Err: err}
	}
	return err
}

// away returns the outcome of messages that were not sent because the server cannot be reached, or accepts no
// transactions.
func away(err error) error {
	code := relay.CodeUnavailable
	first := word(err)
	if first == aborted {
		_, reason, _ := strings.Cut(err.Error(), because)
		first, _, _ = strings.Cut(reason, " ")
	}
	if ofServer[first] != "" {
		code = ofServer[first]
	} else if first == forbidden {
		code = relay.CodeForbidden
	}
	if credentials.IsUntrusted(err) {
		code = relay.CodeForbidden
	}
	return &relay.UnavailableError{Code: code, Err: err}
}

// unanswered returns the outcome of messages that were sent without getting an answer.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("the server has not said whether it is stored: %w", err)
}
