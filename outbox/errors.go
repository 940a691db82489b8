package outbox

import (
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// ErrLeaseLost says that a worker no longer owns the job: its lease lapsed and
// another took over, its deadline has come, or an operator took the job away. It is the cause of the
// handler's cancelled context, and what [Claimed.Complete] and [Claimed.Guard]
// return; a transaction that gets it must roll back.
var ErrLeaseLost = errors.New("lease lost")

// ErrNotFound says that there is no such job: its transaction did not commit (yet),
// or the history has trimmed it.
var ErrNotFound = errors.New("job not found")

// ErrNoResult says that a job succeeded and left no result: its handler was not
// registered with dispatcher.HandleResult, or called Complete without one.
var ErrNoResult = errors.New("the job succeeded without a result")

// SealedError says that a job succeeded with a result that a [Protector] sealed, and
// that there was none to open it, or one that does not know this kind of seal. Give
// await.Config the protector, or open what is stored by [OpenResult].
type SealedError struct {
	ID          ID
	ContentType string // says which kind of protector; begins with [SealedTypes]
}

func (e *SealedError) Error() string {
	return fmt.Sprintf("the result of job %s is sealed (%s): it needs await.Config.Protect, or outbox.OpenResult", e.ID, e.ContentType)
}

// JobError says that a job has ended otherwise than by success, and how.
type JobError struct {
	ID      ID
	Status  Status // Failed and Dead can still be retried by a person
	Code    string // of the latest failed attempt; "" for none
	Message string
}

func (e *JobError) Error() string {
	if e.Code == "" {
		return fmt.Sprintf("job %s is %s", e.ID, e.Status)
	}
	return fmt.Sprintf("job %s is %s: %s: %s", e.ID, e.Status, e.Code, e.Message)
}

// InvalidError says which part of a request is not acceptable, and why.
// Nothing was sent to the database.
type InvalidError struct {
	Field  string // as written in Go: "Options.Queue", "Args.Kind()"
	Reason string
}

func (e *InvalidError) Error() string { return e.Field + " " + e.Reason }

func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// RequestError says which request of [EnqueueMany] is not acceptable; it wraps its
// [*InvalidError]s.
type RequestError struct {
	Index int
	Err   error
}

func (e *RequestError) Error() string { return fmt.Sprintf("request %d: %v", e.Index, e.Err) }

// Unwrap is Err.
func (e *RequestError) Unwrap() error { return e.Err }

// explain adds what to do to an error that every newcomer meets once.
func explain(err error) error {
	switch state := pgsession.State(err); {
	case state == pgsession.UndefinedTable || state == pgsession.InvalidSchema:
		return fmt.Errorf("%w (is the schema outbox migrated? run: posthaste migrate up)", err)
	case pgsession.IsRowSecurity(err):
		return fmt.Errorf("%w (the role is tied to the tenant of app.tenant_id, or to none if that is not set: see docs/tenants.md)", err)
	}
	return err
}
