package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

const (
	// aborted is what the server says of what it would have taken, had it taken everything.
	aborted = "EXECABORT"
	// because is what the reason for it follows if EXEC itself was refused.
	because = "because of: "

	forbidden = "NOPERM"
)

var errNoAnswer = errors.New("no answer")

// ofServer are the first words of errors that say nothing of the message, but that the server takes none now.
var ofServer = map[string]string{
	"OOM":         relay.CodeFull, // maxmemory, with noeviction
	"MISCONF":     relay.CodeFull, // it cannot write to its disk
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

// word is the first word of an error of the server's, "" for one of the client's.
func word(err error) string {
	answer, ok := errors.AsType[redis.Error](err)
	if !ok {
		return ""
	}
	first, _, _ := strings.Cut(answer.Error(), " ")
	return first
}

// classify says what the answer to a message means. What is neither refused nor unavailable is unknown.
func classify(m *relay.Message, err error) error {
	if errors.Is(err, redis.Nil) {
		return &relay.UnavailableError{Code: relay.CodeNoDestination, Err: fmt.Errorf("%s: %w", m.Destination, errNoStream)}
	}
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

// away is the outcome of messages that were not sent because the server cannot be reached, or takes no transactions.
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

// unanswered is the outcome of messages that were sent, and of which nothing came back.
func unanswered(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("the server has not said whether it is stored: %w", err)
}
