package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/internal/credentials"
)

// Error describes how a delivery failed. Its code is stored with the failed attempt.
type Error struct {
	Place  string // scheme and host of the target
	Status int    // 0 if there was no answer
	Body   string // the first 1 KiB of the answer
	Err    error  // why there was no answer
}

func (e *Error) Error() string {
	if e.Status == 0 {
		return fmt.Sprintf("POST to %s: %v", e.Place, e.Err)
	}
	text := fmt.Sprintf("POST to %s: %d %s", e.Place, e.Status, http.StatusText(e.Status))
	if e.Status >= 300 && e.Status < 400 {
		text += " (redirects are not followed: configure the final URL)"
	}
	if e.Body != "" {
		text += ": " + e.Body
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }

// Code returns http_STATUS, http_timeout or http_unreachable.
func (e *Error) Code() string {
	if e.Status != 0 {
		return "http_" + strconv.Itoa(e.Status)
	}
	if timeout, ok := errors.AsType[net.Error](e.Err); ok && timeout.Timeout() ||
		errors.Is(e.Err, context.DeadlineExceeded) {
		return "http_timeout"
	}
	return "http_unreachable"
}

const (
	maxRetryAfter = 24 * time.Hour // keeps a receiver's mistake from postponing a job for years
	minOutage     = time.Second    // the time left until a date may be a millisecond
)

func isSuccess(status int) bool { return status >= 200 && status < 300 }

// failure returns the error for an unsuccessful answer, with the beginning of its body.
func failure(place string, res *http.Response) *Error {
	var quoted []byte
	if res.StatusCode != http.StatusSwitchingProtocols { // whose body is the connection
		quoted, _ = io.ReadAll(io.LimitReader(res.Body, maxQuoted))
	}
	return &Error{
		Place: place, Status: res.StatusCode,
		Body: strings.TrimSpace(strings.ToValidUTF8(string(quoted), "?")),
	}
}

// judge turns an answer into the attempt's outcome.
func judge(place string, res *http.Response, now time.Time) error {
	status := res.StatusCode
	if isSuccess(status) {
		return nil
	}
	failed := failure(place, res)
	switch status {
	case http.StatusServiceUnavailable:
		// A receiver that says when it will be back is reporting its own outage. A 503 without Retry-After, a 502 or a
		// 504 may also come from a proxy for a receiver that this very job brings down: such a job must spend its
		// attempts.
		if wait, ok := backoff.RetryAfter(res.Header.Get("Retry-After"), now, maxRetryAfter); ok {
			if wait < minOutage {
				wait = 0 // as long as the outage has lasted so far
			}
			return dispatcher.Unavailable(failed, wait)
		}
		return failed
	case http.StatusTooManyRequests:
		if wait, ok := backoff.RetryAfter(res.Header.Get("Retry-After"), now, maxRetryAfter); ok {
			return dispatcher.RetryAtLeast(wait, failed)
		}
		return failed
	case http.StatusBadRequest, http.StatusGone, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusUnprocessableEntity:
		return dispatcher.Discard(failed)
	}
	return failed
}

// judgeSilence returns the outcome for a request without an answer. If there was no connection to send it on, including
// one to the proxy, the receiver is unavailable and any other job would have failed alike; a host name that does not
// exist is a mistake in the configuration. Any later failure (a failed handshake, a connection that breaks, no answer
// in time) may be related to the job.
func judgeSilence(failed *Error) error {
	dial, ok := errors.AsType[*net.OpError](failed.Err)
	if ok && dial.Op == "proxyconnect" {
		dial, ok = errors.AsType[*net.OpError](dial.Err)
	}
	if !ok || dial.Op != "dial" {
		return failed
	}
	if dns, ok := errors.AsType[*net.DNSError](failed.Err); ok && dns.IsNotFound {
		return failed
	}
	return dispatcher.Unavailable(failed, 0)
}

// classify returns the outcome of a message for an unsuccessful answer. An answer that is neither a refusal nor
// unavailability leaves the message unknown: the receiver, or a proxy in front of it, may have accepted the message
// without confirming it.
//
// A proxy that does not reach the receiver answers 502, 503 or 504, while a connection to the proxy succeeds: only the
// answer shows the outage. A message that takes the receiver too long also gets a 504, and one that brings it down a
// 502. Sending other messages shows which of the two is the case.
//
// Receivers that know Idempotency-Key may answer 409 while the first request with a key is still in progress; with
// again they ask to send it once more.
func classify(failed *Error, again bool) error {
	refused := func(code string) error { return &relay.RefusedError{Code: code, Err: failed} }
	unavailable := func(code string) error { return &relay.UnavailableError{Code: code, Err: failed} }
	switch failed.Status {
	case http.StatusRequestEntityTooLarge, http.StatusRequestHeaderFieldsTooLarge:
		return refused(relay.CodeTooLarge)
	case http.StatusRequestURITooLong:
		return refused(relay.CodeBadDestination)
	case http.StatusForbidden:
		return refused(relay.CodeForbidden)
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone: // a wrong URL, or a closed endpoint
		return unavailable(relay.CodeNoDestination)
	case http.StatusUnauthorized, // a wrong signature is our fault, not the message's
		http.StatusProxyAuthRequired:
		return unavailable(relay.CodeForbidden)
	case http.StatusTooManyRequests, http.StatusInsufficientStorage:
		return unavailable(relay.CodeFull)
	case http.StatusServiceUnavailable:
		return unavailable(relay.CodeUnavailable)
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %w", relay.ErrMaybeAway, failed)
	case http.StatusRequestTimeout, http.StatusTooEarly, http.StatusLocked, http.StatusMisdirectedRequest:
		return failed // the same request may be accepted later
	case http.StatusConflict:
		if again {
			return failed
		}
	}
	switch failed.Status / 100 {
	case 3:
		return unavailable(relay.CodeNoDestination)
	case 4: // the receiver has examined the request, and blames it
		return refused(relay.CodeRefused)
	}
	return failed
}

// away returns the outcome of a message for which there was no connection.
func away(failed *Error) error {
	code := relay.CodeUnavailable
	if _, ok := errors.AsType[*addressError](failed.Err); ok || credentials.IsUntrusted(failed.Err) {
		code = relay.CodeForbidden
	}
	return &relay.UnavailableError{Code: code, Err: failed}
}
