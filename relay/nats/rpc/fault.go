package rpc

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// fault is an error in the form that is sent: NotFoundError, ValidationError, AuthError or UnexpectedError.
type fault struct {
	ID       string         `json:"id"` // of the request; also in the log
	Type     string         `json:"type"`
	Message  string         `json:"message"`
	Issues   []issue        `json:"issues,omitempty"`   // of a ValidationError
	Resource string         `json:"resource,omitempty"` // of a NotFoundError: Job or Key
	JobID    string         `json:"jobId,omitempty"`
	Reason   string         `json:"reason,omitempty"` // of an AuthError
	Context  map[string]any `json:"context,omitempty"`

	code string // in the form of the API's status
}

// issue is one mistake in a request.
type issue struct {
	Path    string `json:"path"` // a JSON pointer; "" means the whole request
	Message string `json:"message"`
}

func (f *fault) Error() string { return f.Type + ": " + f.Message }

// ours reports whether the operator of the service should know about it.
func (f *fault) ours() bool { return f.Type == typeUnexpected && f.code >= "500" }

const (
	typeNotFound   = "NotFoundError"
	typeValidation = "ValidationError"
	typeAuth       = "AuthError"
	typeUnexpected = "UnexpectedError"
)

// unauthenticated returns the same fault whatever is wrong with the token.
func unauthenticated() *fault {
	return &fault{
		Type: typeAuth, Message: "A valid bearer token is needed in the header Authorization.",
		Reason: "session_not_found", code: "401",
	}
}

func forbidden(why string) *fault {
	return &fault{
		Type: typeAuth, Message: "The token does not allow this. " + why, Reason: "insufficient_permissions",
		code: "403",
	}
}

func invalid(issues ...issue) *fault {
	texts := make([]string, len(issues))
	for i, one := range issues {
		texts[i] = strings.TrimSpace(one.Path + " " + one.Message)
	}
	return &fault{
		Type: typeValidation, Message: "The request is not acceptable: " + strings.Join(texts, "; "),
		Issues: issues, code: "422",
	}
}

func noJob(id string) *fault {
	return &fault{
		Type: typeNotFound, Message: "The job does not exist, or is not visible to this tenant.", Resource: "Job",
		JobID: id, code: "404",
	}
}

func noKey() *fault {
	return &fault{
		Type: typeNotFound, Message: "No open job of this tenant bears the key.", Resource: "Key",
		code: "404",
	}
}

// unexpectedOnes maps codes to the code in the context of an UnexpectedError, named like the API's problems.
var unexpectedOnes = map[string]struct{ code, message string }{
	"overloaded":     {"429", "There are too many requests; try again in a second."},
	"rate_limited":   {"429", "There are too many requests by this token; try again in a second."},
	"unavailable":    {"503", "The database, or the provider of the token, cannot be reached; try again."},
	"timeout":        {"504", "It took too long. Whether anything was changed is not known."},
	"too_large":      {"500", "The answer is larger than the NATS server takes."},
	"internal_error": {"500", "An unexpected error has occurred"},
}

func unexpected(code string) *fault {
	u := unexpectedOnes[code]
	return &fault{Type: typeUnexpected, Message: u.message, Context: map[string]any{"code": code}, code: u.code}
}

func overloaded() *fault { return unexpected("overloaded") }

// faultOf returns the fault that clients get for an error. An error that they must not know becomes an UnexpectedError
// without details.
func faultOf(err error) *fault {
	if f, ok := errors.AsType[*fault](err); ok {
		return f
	}
	if refused, ok := errors.AsType[*operator.StatusError](err); ok {
		f := invalid(issue{"/id", fmt.Sprintf("is the id of a job that is %s, which does not allow this",
			stateOf(refused.Status))})
		f.code, f.Context = "409", map[string]any{"state": stateOf(refused.Status)}
		return f
	}
	if wrong, ok := errors.AsType[*outbox.InvalidError](err); ok {
		return invalid(issue{"", wrong.Reason})
	}
	switch {
	case errors.Is(err, operator.ErrPastDeadline):
		f := invalid(issue{"/id", "is the id of a job whose deadline has passed: it would only expire"})
		f.code = "409"
		return f
	case errors.Is(err, operator.ErrNotFound):
		return noJob("")
	case errors.Is(err, operator.ErrKeyNotFound):
		return noKey()
	case errors.Is(err, access.ErrTooManyUnknown):
		return overloaded()
	case errors.Is(err, context.DeadlineExceeded), pgconn.Timeout(err),
		pgsession.State(err) == pgsession.QueryCanceled, pgsession.State(err) == pgsession.LockNotAvailable:
		return unexpected("timeout")
	case errors.Is(err, access.ErrProviderAway), pgsession.IsAway(err):
		return unexpected("unavailable")
	case pgsession.State(err) == pgsession.NotInEncoding:
		return invalid(issue{"", "has a character that the encoding of the database lacks"})
	}
	return unexpected("internal_error")
}
