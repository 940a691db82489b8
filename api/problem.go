package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// Problem is an error in the form that clients see (RFC 9457).
type Problem struct {
	Type      string  `json:"type" format:"uri" doc:"Type of the problem: the address of its documentation"`
	Title     string  `json:"title" doc:"Title of the type, the same for every occurrence"`
	Status    int     `json:"status" doc:"The HTTP status"`
	Code      string  `json:"code" doc:"Identifies the problem; never changes"`
	Outcome   string  `json:"outcome" enum:"none,unknown,done" doc:"Outcome of the request. none: nothing was changed. unknown: it may have been carried out or not. done: it was carried out, and only the response could not be produced"`
	Detail    string  `json:"detail,omitempty" doc:"Description of this occurrence"`
	Instance  string  `json:"instance,omitempty" format:"uri-reference" doc:"The path of the request"`
	RequestID string  `json:"requestId" doc:"Id of the request, which the server's log also contains"`
	Errors    []Fault `json:"errors,omitempty" doc:"All mistakes found, with their places"`

	retryAfter int    // seconds; 0 omits the header
	allow      string // methods that the path accepts
	unsure     bool   // whether anything was changed is unknown
}

// Fault is one mistake in a request, with its place.
type Fault struct {
	Detail    string `json:"detail"`
	Pointer   string `json:"pointer,omitempty" doc:"Place in the body, as a JSON pointer like #/payload/to"`
	Line      int    `json:"line,omitempty" doc:"Line of the body, from 1, if it consists of lines"`
	Parameter string `json:"parameter,omitempty" doc:"Name of the parameter of the path or the query"`
	Header    string `json:"header,omitempty" doc:"Name of the header"`
}

// Error returns a text for logs.
func (p *Problem) Error() string { return p.Code + ": " + p.Detail }

// GetStatus makes huma send the problem unchanged.
func (p *Problem) GetStatus() int { return p.Status }

// GetHeaders returns the headers that accompany the problem.
func (p *Problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(p.retryAfter))
	}
	if p.allow != "" {
		h.Set("Allow", p.allow)
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="posthaste"`)
	}
	return h
}

// ContentType returns the content type of problems.
func (*Problem) ContentType(string) string { return problemJSON }

const (
	problemJSON = "application/problem+json"
	problemDocs = "https://github.com/posthaste-dev/posthaste/blob/main/docs/reference/api.md#"
)

// These describe the outcome of what was requested.
const (
	outcomeNone    = "none"
	outcomeUnknown = "unknown"
	outcomeDone    = "done"
)

// code is one kind of problem. Codes are public and permanent.
type code struct {
	name   string
	status int
	title  string
}

var (
	malformed         = code{"malformed_request", http.StatusBadRequest, "The request cannot be read"}
	invalidInput      = code{"invalid_input", http.StatusUnprocessableEntity, "The request is not acceptable"}
	unauthenticated   = code{"unauthenticated", http.StatusUnauthorized, "A valid bearer token is needed"}
	forbidden         = code{"forbidden", http.StatusForbidden, "The token does not allow this"}
	jobNotFound       = code{"job_not_found", http.StatusNotFound, "Job not found"}
	keyNotFound       = code{"key_not_found", http.StatusNotFound, "Key not found"}
	scheduleNotFound  = code{"schedule_not_found", http.StatusNotFound, "Schedule not found"}
	sinkNotFound      = code{"sink_not_found", http.StatusNotFound, "Sink not found"}
	replayNotFound    = code{"replay_not_found", http.StatusNotFound, "Replay not found"}
	operationNotFound = code{"operation_not_found", http.StatusNotFound, "Operation not found"}
	routeNotFound     = code{"route_not_found", http.StatusNotFound, "There is nothing at this path"}
	methodNotAllowed  = code{"method_not_allowed", http.StatusMethodNotAllowed, "The path does not take this method"}
	requestTimeout    = code{"request_timeout", http.StatusRequestTimeout, "The body took too long to arrive"}
	jobStatusConflict = code{"job_status_conflict", http.StatusConflict, "The job's status does not allow this"}
	scheduleExists    = code{"schedule_exists", http.StatusConflict, "There is a schedule of the name"}
	scheduleDeclared  = code{"schedule_declared", http.StatusConflict, "A program declares the schedule"}
	tooManyOperations = code{"too_many_operations", http.StatusConflict, "Too many operations are not finished"}
	oldTransaction    = code{"old_transaction", http.StatusConflict, "The jobs cannot be counted just now"}
	blocksChanged     = code{"blocks_changed", http.StatusConflict, "Other dead letters block the key"}
	eventNotWaiting   = code{"event_not_waiting", http.StatusConflict, "The event does not wait for the sink"}
	nothingToReplay   = code{"nothing_to_replay", http.StatusConflict, "No job or event matches"}
	jobNotFinished    = code{"job_not_finished", http.StatusConflict, "The job has not finished"}
	keyBusy           = code{"idempotency_key_busy", http.StatusConflict, "A transaction is using this key"}
	rowLocked         = code{"row_locked", http.StatusConflict, "Another transaction has locked it"}
	keyFull           = code{"key_full", http.StatusConflict, "Too many jobs of the key wait"}
	bodyTooLarge      = code{"body_too_large", http.StatusRequestEntityTooLarge, "The body is too large"}
	mediaType         = code{
		"unsupported_media_type", http.StatusUnsupportedMediaType,
		"The body's content type is not taken here",
	}
	rateLimited   = code{"rate_limited", http.StatusTooManyRequests, "Too many requests by this token"}
	overloaded    = code{"overloaded", http.StatusTooManyRequests, "The server is overloaded"}
	clientGone    = code{"client_gone", 499, "The client went away"} // which will not read it
	internalError = code{"internal_error", http.StatusInternalServerError, "Something went wrong here"}
	unavailable   = code{"unavailable", http.StatusServiceUnavailable, "The database cannot be reached"}
	timedOut      = code{"timeout", http.StatusGatewayTimeout, "It took too long"}
)

// problemCodes lists all of them.
var problemCodes = []code{
	malformed, invalidInput, unauthenticated, forbidden, jobNotFound, keyNotFound, scheduleNotFound, sinkNotFound,
	replayNotFound, operationNotFound, routeNotFound, methodNotAllowed, requestTimeout,
	jobStatusConflict, scheduleExists, scheduleDeclared, tooManyOperations, oldTransaction, blocksChanged,
	eventNotWaiting, nothingToReplay, jobNotFinished, keyBusy, rowLocked, keyFull, bodyTooLarge, mediaType, rateLimited, overloaded, clientGone,
	internalError, unavailable, timedOut,
}

// because returns a problem of this kind.
func (c code) because(detail string, faults ...Fault) *Problem {
	p := &Problem{
		Type: problemDocs + c.name, Title: c.title, Status: c.status, Code: c.name, Outcome: outcomeNone,
		Detail: detail, Errors: faults,
	}
	if c == internalError || c == clientGone { // wherever it happened
		p.Outcome = outcomeUnknown
	}
	return p
}

// after sets when to try again.
func (p *Problem) after(seconds int) *Problem {
	p.retryAfter = seconds
	return p
}

// unknown marks that the request may have changed something all the same.
func (p *Problem) unknown() *Problem {
	p.unsure, p.Outcome = true, outcomeUnknown
	return p
}

// unbegun returns the problem of a request that ended before its handler began: it has certainly changed nothing.
func (p *Problem) unbegun() *Problem {
	if p.unsure {
		p = unavailable.because("Its turn did not come, or its token could not be looked up, in time; try again.").after(1)
	}
	p.Outcome = outcomeNone
	return p
}

// of completes a problem for its route. A mistake that may be in the body or in a parameter is in a parameter if the
// route is one that reads, or has the parameter in its path. To an unknown outcome it adds what a client may do:
// retrying an act could do it twice.
func (p *Problem) of(op *huma.Operation) *Problem {
	for i := range p.Errors {
		switch fault := &p.Errors[i]; {
		case fault.Pointer == "" || fault.Parameter == "":
		case op.Method == http.MethodGet, strings.Contains(op.Path, "{"+fault.Parameter+"}"):
			fault.Pointer = ""
		default:
			fault.Parameter = ""
		}
	}
	if op.Method == http.MethodGet {
		p.Outcome = outcomeNone
		return p
	}
	if !p.unsure {
		return p
	}
	p.retryAfter = 0
	if op.Path == "/jobs" || op.Path == "/jobs/batch" {
		p.Detail += " Whether anything was stored is not known; a repeat with the same idempotency key is safe."
	} else {
		p.Detail += " Whether anything was changed is not known: look before you ask again."
	}
	return p
}

// lookAfterStore is the error of a look at jobs that are stored, of a request that may be repeated with its key.
type lookAfterStore struct{ error }

// lookAfterAct is the error of a look at the result of an act that is done.
type lookAfterAct struct{ error }

// afterAct marks the act as done in the problem of a look after it that failed with err. nil stays nil.
func afterAct(err error) error {
	if err == nil {
		return nil
	}
	return &lookAfterAct{err}
}

// done marks that the request is done, and that only the answer could not be made.
func (p *Problem) done() *Problem {
	p.Outcome = outcomeDone
	if p.Status >= http.StatusInternalServerError {
		p.Detail, p.retryAfter,
			p.unsure = "It is done, but how things are now could not be read: do not ask for it again, look.", 0, false
	}
	return p
}

// problemOf returns the problem that clients get for an error. An error that they must not see becomes an internal
// error without details.
func problemOf(err error) *Problem {
	if look, ok := errors.AsType[*lookAfterAct](err); ok {
		return problemOf(look.error).done()
	}
	if look, ok := errors.AsType[*lookAfterStore](err); ok {
		return problemOf(look.error).unknown()
	}
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if refused, ok := errors.AsType[*operator.StatusError](err); ok {
		return jobStatusConflict.because("The job is " + string(refused.Status) + ".")
	}
	if _, ok := errors.AsType[*outbox.InvalidError](err); ok {
		return invalidInput.because("", faultsOf(err)...)
	}
	switch {
	case errors.Is(err, operator.ErrPastDeadline):
		return jobStatusConflict.because("Its deadline has passed: it would only expire.")
	case errors.Is(err, operator.ErrNotFound):
		return jobNotFound.because("The job does not exist, or is not visible to this tenant.")
	case errors.Is(err, operator.ErrKeyNotFound):
		return keyNotFound.because("No open job of this tenant bears it.")
	case errors.Is(err, operator.ErrScheduleNotFound):
		return scheduleNotFound.because("This tenant has no schedule of the name.")
	case errors.Is(err, schedule.ErrExists):
		return scheduleExists.because("Change it, or choose another name.")
	case errors.Is(err, schedule.ErrDeclared):
		return scheduleDeclared.because("Change it in app.Config.Schedules: its next start would undo other changes.")
	case errors.Is(err, operator.ErrSinkNotFound):
		return sinkNotFound.because("No relay has ever published to a sink of the name.")
	case errors.Is(err, operator.ErrReplayNotFound):
		return replayNotFound.because("The sink has no replay of the id, or it is not visible to this tenant.")
	case errors.Is(err, operator.ErrOperationNotFound):
		return operationNotFound.because("There is none of the id, or it is not visible to this tenant.")
	case errors.Is(err, operator.ErrTooManyOperations):
		return tooManyOperations.because("At most 100 may be under way, and 1 000 unfinished: wait for one to end.").after(10)
	case errors.Is(err, operator.ErrOldWriter):
		return oldTransaction.because("A transaction has been open for so long that too many others have begun since: " +
			"try again when it has ended.").after(60)
	case errors.Is(err, operator.ErrBlocksChanged):
		return blocksChanged.because("One has run, was acted on or has come since blocks was read.")
	case errors.Is(err, operator.ErrNothingToReplay):
		return nothingToReplay.because("The log has no such event.")
	case errors.Is(err, operator.ErrNoJobsToReplay):
		return nothingToReplay.because("The history has no such job.")
	case errors.Is(err, operator.ErrTooManyToReplay):
		return invalidInput.because("They are more than 20 000 jobs or 64 MiB: name a shorter time.")
	case errors.Is(err, operator.ErrNotWaiting):
		return eventNotWaiting.because("The sink has published it, or has passed it by, or there is no such event.")
	}
	return environmentProblem(err)
}

// environmentProblem returns the problem for an error that is not about what the client asks for: it is gone, the time
// is up, or the database or a provider of tokens does not answer as it should.
func environmentProblem(err error) *Problem {
	switch {
	case errors.Is(err, context.Canceled):
		return clientGone.because("")
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err), isSQL(err, queryCanceled):
		return timedOut.because("The server gave up.").unknown()
	case isSQL(err, lockNotAvailable):
		return rowLocked.because("It did not end in time; try again.").after(1)
	case errors.Is(err, access.ErrTooManyUnknown):
		return overloaded.because("Too many tokens that are not known yet are being looked at.").after(1)
	case errors.Is(err, access.ErrProviderAway):
		return unavailable.because("The provider of the token does not answer; try again.").after(1)
	case isSQL(err, pgsession.NotInEncoding):
		return invalidInput.because("It has a character that the encoding of the database lacks, which is not UTF-8.")
	case pgsession.IsAway(err) && !pgsession.ChangedNothing(err):
		return unavailable.because("The connection to the database broke.").after(1).unknown()
	case pgsession.IsAway(err):
		return unavailable.because("Nothing is wrong with the request; try again.").after(1)
	}
	return internalError.because("")
}

// These are error codes of Postgres.
const (
	lockNotAvailable = pgsession.LockNotAvailable
	queryCanceled    = pgsession.QueryCanceled

	insufficientPrivilege = pgsession.InsufficientPrivilege
)

func isSQL(err error, conditions ...string) bool {
	return slices.Contains(conditions, pgsession.State(err))
}

// writeProblem answers where huma does not: before a route is known, and after a panic.
func writeProblem(w http.ResponseWriter, r *http.Request, p *Problem) {
	p.Instance, p.RequestID = r.URL.EscapedPath(), requestID(r.Context())
	if r.Method == http.MethodGet {
		p.Outcome = outcomeNone
	}
	h := w.Header()
	for name, values := range p.GetHeaders() {
		h[name] = values
	}
	h.Set("Content-Type", problemJSON)
	w.WriteHeader(p.Status)
	_ = json.NewEncoder(w).Encode(p) // the client went away
}
