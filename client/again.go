package client

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"time"
)

// lost is that no answer came: whether anything was done is not known.
type lost struct{ err error }

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

// again reports whether to repeat the request after an attempt that failed, and when.
func (r request) again(err error, attempt int) (wait time.Duration, sensible bool) {
	wait = backoff(attempt)
	if p, ok := errors.AsType[*Problem](err); ok {
		return max(wait, p.RetryAfter), p.nothingWasDone() || r.repeatable && p.passing()
	}
	_, ok := errors.AsType[*lost](err)
	return wait, ok && (r.repeatable || neverSent(err))
}

// mayBeDone reports whether an attempt that failed may have done what was asked for.
func mayBeDone(err error) bool {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p.Outcome != OutcomeNone
	}
	return !neverSent(err)
}

// unsure is a problem of an attempt, of which an earlier one may have done what was asked for.
func unsure(err error) error {
	if p, ok := errors.AsType[*Problem](err); ok && p.Outcome == OutcomeNone {
		p.Outcome = OutcomeUnknown
	}
	return err
}

// neverSent: there was no connection to send it on.
func neverSent(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

// nothingWasDone: the API promises it for what it turns away.
func (p *Problem) nothingWasDone() bool { return p.Status == http.StatusTooManyRequests }

// passing reports whether the same request may fare better a little later.
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
