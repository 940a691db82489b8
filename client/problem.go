package client

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Code identifies the kind of a problem. Codes never change; new ones may be added.
type Code string

// These are the codes of the API; docs/reference/api.md explains them.
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
	CodeTooManyOperations    Code = "too_many_operations"
	CodeOldTransaction       Code = "old_transaction"
	CodeBlocksChanged        Code = "blocks_changed"
	CodeEventNotWaiting      Code = "event_not_waiting"
	CodeNothingToReplay      Code = "nothing_to_replay"
	CodeJobNotFinished       Code = "job_not_finished"
	CodeIdempotencyKeyBusy   Code = "idempotency_key_busy"
	CodeRowLocked            Code = "row_locked"
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

// ProblemOutcome is the outcome of the request that had a problem.
type ProblemOutcome string

// These are the outcomes of a request that had a problem.
const (
	OutcomeNone    ProblemOutcome = "none"    // nothing was changed
	OutcomeUnknown ProblemOutcome = "unknown" // it may or may not be done
	OutcomeDone    ProblemOutcome = "done"    // it is done; only the resulting state could not be read
)

// Problem is the reason for which a request failed (RFC 9457); its Outcome states whether it was done all the same.
// Match it with errors.AsType:
//
//	if p, ok := errors.AsType[*client.Problem](err); ok && p.Code == client.CodeJobNotFound { … }
type Problem struct {
	Type      string         `json:"type"`
	Title     string         `json:"title"`
	Status    int            `json:"status"`
	Code      Code           `json:"code"` // "" if an intermediary answered rather than the API
	Outcome   ProblemOutcome `json:"outcome"`
	Detail    string         `json:"detail,omitempty"`
	Instance  string         `json:"instance,omitempty"`
	RequestID string         `json:"requestId"` // also in the server's log
	Errors    []Fault        `json:"errors,omitempty"`

	RetryAfter time.Duration `json:"-"` // from the header; 0 if there was none
}

// Fault is one mistake in a request, with its place.
type Fault struct {
	Detail    string `json:"detail"`
	Pointer   string `json:"pointer,omitempty"` // in the body, like #/payload/to
	Line      int    `json:"line,omitempty"`    // of a batch, from 1
	Parameter string `json:"parameter,omitempty"`
	Header    string `json:"header,omitempty"`
}

// Error returns everything that a person needs to correct the request, and the request's id for inquiries.
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

// String returns the place and what is wrong there.
func (f Fault) String() string {
	place := strings.TrimSpace(f.Pointer + f.Parameter + f.Header)
	if f.Line > 0 {
		place = strings.TrimSpace(fmt.Sprintf("line %d %s", f.Line, place))
	}
	return strings.TrimSpace(place + " " + f.Detail)
}

// problemOf parses an unsuccessful answer, including one that is not the API's.
func problemOf(resp *http.Response, text []byte) *Problem {
	p := &Problem{}
	if json.Unmarshal(text, p) != nil || p.Code == "" {
		p = &Problem{Title: "HTTP " + resp.Status, RequestID: resp.Header.Get("X-Request-Id")}
		if to := resp.Header.Get("Location"); to != "" {
			p.Detail = fmt.Sprintf("it sends to %q, which would not be the same request", to)
		}
	}
	p.Status = resp.StatusCode
	if p.Outcome == "" { // from an intermediary, or an older API
		p.Outcome = OutcomeUnknown
		if p.Code != "" && p.Status < http.StatusInternalServerError {
			p.Outcome = OutcomeNone
		}
	}
	p.RetryAfter = retryAfter(resp.Header.Get("Retry-After"), time.Now())
	return p
}

// retryAfter parses seconds or a date.
func retryAfter(v string, now time.Time) time.Duration {
	if n, err := strconv.Atoi(v); err == nil && n > 0 {
		return time.Duration(min(n, 1e6)) * time.Second
	}
	if at, err := http.ParseTime(v); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}
