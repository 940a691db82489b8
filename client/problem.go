package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Code says what kind of problem it is. Codes never change; new ones may come.
type Code string

// The codes that the API has; docs/reference/api.md explains them.
const (
	CodeMalformedRequest     Code = "malformed_request"
	CodeInvalidInput         Code = "invalid_input"
	CodeUnauthenticated      Code = "unauthenticated"
	CodeForbidden            Code = "forbidden"
	CodeJobNotFound          Code = "job_not_found"
	CodeKeyNotFound          Code = "key_not_found"
	CodeScheduleNotFound     Code = "schedule_not_found"
	CodeSinkNotFound         Code = "sink_not_found"
	CodeReplayNotFound       Code = "replay_not_found"
	CodeOperationNotFound    Code = "operation_not_found"
	CodeRouteNotFound        Code = "route_not_found"
	CodeMethodNotAllowed     Code = "method_not_allowed"
	CodeRequestTimeout       Code = "request_timeout"
	CodeJobStatusConflict    Code = "job_status_conflict"
	CodeScheduleExists       Code = "schedule_exists"
	CodeScheduleDeclared     Code = "schedule_declared"
	CodeEventNotWaiting      Code = "event_not_waiting"
	CodeNothingToReplay      Code = "nothing_to_replay"
	CodeJobNotFinished       Code = "job_not_finished"
	CodeIdempotencyKeyBusy   Code = "idempotency_key_busy"
	CodeKeyFull              Code = "key_full"
	CodeBodyTooLarge         Code = "body_too_large"
	CodeUnsupportedMediaType Code = "unsupported_media_type"
	CodeRateLimited          Code = "rate_limited"
	CodeOverloaded           Code = "overloaded"
	CodeClientGone           Code = "client_gone"
	CodeInternalError        Code = "internal_error"
	CodeUnavailable          Code = "unavailable"
	CodeTimeout              Code = "timeout"
)

// ProblemOutcome says what became of what was asked for.
type ProblemOutcome string

// The outcomes that a problem has.
const (
	OutcomeNone    ProblemOutcome = "none"    // nothing was changed
	OutcomeUnknown ProblemOutcome = "unknown" // it may be done or not
	OutcomeDone    ProblemOutcome = "done"    // it is done; only how things are now could not be read
)

// Problem is why a request failed (RFC 9457), and its Outcome whether it was done all the same. Match it with
// errors.AsType:
//
//	if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == client.CodeJobNotFound { … }
type Problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Code      Code           `json:"code"` // "" if something in between answered, and not the API
	Outcome   ProblemOutcome `json:"outcome"`
	Detail    string         `json:"detail,omitempty"`
	Instance  string         `json:"instance,omitempty"`
	RequestID string         `json:"requestId"` // which the server's log has too
	Errors    []Fault        `json:"errors,omitempty"`

	RetryAfter time.Duration `json:"-"` // of the header; 0 if there was none
}

// Fault is one mistake in a request, and where it is.
type Fault struct {
	Detail    string `json:"detail"`
	Pointer   string `json:"pointer,omitempty"` // in the body, like #/payload/to
	Line      int    `json:"line,omitempty"`    // of a batch, from 1
	Parameter string `json:"parameter,omitempty"`
	Header    string `json:"header,omitempty"`
}

// Error has what a person needs to mend it, and the request's id to ask with.
func (p *Problem) Error() string {
	text := p.Title
	if p.Detail != "" {
		text += ": " + strings.TrimSuffix(p.Detail, ".")
	}
	for _, f := range p.Errors {
		text += "; " + f.String()
	}
	about := []string{strconv.Itoa(p.Status)}
	if p.Code != "" {
		about = append(about, string(p.Code))
	}
	if p.RequestID != "" {
		about = append(about, "request "+p.RequestID)
	}
	return fmt.Sprintf("%s (%s)", text, strings.Join(about, ", "))
}

// String is the place and what is wrong there.
func (f Fault) String() string {
	place := strings.TrimSpace(f.Pointer + f.Parameter + f.Header)
	if f.Line > 0 {
		place = strings.TrimSpace(fmt.Sprintf("line %d %s", f.Line, place))
	}
	return strings.TrimSpace(place + " " + f.Detail)
}

// problemOf reads an answer that is no success, also one that is not the API's.
func problemOf(resp *http.Response, text []byte) *Problem {
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Code == "" {
		p = &Problem{Title: "HTTP " + resp.Status, RequestID: resp.Header.Get("X-Request-Id")}
		if to := resp.Header.Get("Location"); to != "" {
			p.Detail = fmt.Sprintf("it sends to %q, which would not be the same request", to)
		}
	}
	p.Status = resp.StatusCode
	if p.Outcome == "" { // of something in between, or of an API that is older
		p.Outcome = OutcomeUnknown
		if p.Code != "" && p.Status < http.StatusInternalServerError {
			p.Outcome = OutcomeNone
		}
	}
	p.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return p
}

// retryAfter reads seconds or a date.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return time.Duration(min(n, 1e6)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
