package client

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// lost is the error when no answer came: whether anything was done is unknown.
type lost struct{ err error }

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

// again reports whether to repeat the request after a failed attempt, and when.
func (r request) again(err error, attempt int) (wait time.Duration, sensible bool) {
	wait = backoff(attempt)
	if p, ok := errors.AsType[*Problem](err); ok {
		return max(wait, p.RetryAfter), p.nothingWasDone() || r.repeatable && p.passing()
	}
	_, ok := errors.AsType[*lost](err)
	return wait, ok && (r.repeatable || neverSent(err))
}

// mayBeDone reports whether a failed attempt may have done what was requested.
func mayBeDone(err error) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Outcome != OutcomeNone
	}
	return !neverSent(err)
}

// unsure marks the problem of an attempt after an earlier one that may have done what was requested.
func unsure(err error) error {
	if p, ok := errors.AsType[*Problem](err); ok && p.Outcome == OutcomeNone {
		p.Outcome = OutcomeUnknown
	}
	return err
}

// neverSent reports whether there was no connection to send the request on.
func neverSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// nothingWasDone reports whether the API promises, for the requests that it turns away, that nothing was done.
func (p *Problem) nothingWasDone() bool { return p.Status == http.StatusTooManyRequests }

// passing reports whether the same request may succeed a little later.
func (p *Problem) passing() bool {
	switch p.Status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return p.Code == CodeIdempotencyKeyBusy
}

// backoff doubles from a tenth of a second, give or take half of it.
func backoff(attempt int) time.Duration {
	d := 100 * time.Millisecond << min(attempt-1, 6)
	return d/2 + rand.N(d)
}
