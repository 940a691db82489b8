package outbox

import (
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
)

// ErrLeaseLost reports that a worker no longer owns the job: its lease lapsed and another worker took the job over, its
// deadline has passed, or an operator took the job away. [Claimed.Complete] and [Claimed.Guard] return it; a
// transaction that gets it must roll back. If the lease is lost while a handler runs, the handler's context ends, and
// context.Cause returns ErrLeaseLost. If the context ends because of the job's deadline or a cancellation, the cause is
// dispatcher.ErrDeadline or dispatcher.ErrCancelled.
var ErrLeaseLost = errors.New("lease lost")

// InvalidError describes a part of a request that is not acceptable, and why. Nothing was sent to the database.
type InvalidError struct {
	Field  string // as written in Go: "Options.Queue", "Args.Kind()"
	Reason string // reads on from the field's name: "is empty, want …"
}

// Error returns the field and the reason.
func (e *InvalidError) Error() string { return e.Field + " " + e.Reason }

// invalid returns an [*InvalidError]. It is declared here because internal/invalid imports this package.
func invalid(field, format string, args ...any) error {
	return &InvalidError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// RequestError names the request of [EnqueueMany] or [PublishMany] that is not acceptable; it wraps that request's
// [*InvalidError]s.
type RequestError struct {
	Index int
	Err   error
}

// Error names the request by its index.
func (e *RequestError) Error() string { return fmt.Sprintf("request %d: %v", e.Index, e.Err) }

// Unwrap returns e.Err.
func (e *RequestError) Unwrap() error { return e.Err }

// explain adds advice to errors that every newcomer meets once.
func explain(err error) error {
	switch state := pgsession.State(err); {
	case state == pgsession.UndefinedTable || state == pgsession.InvalidSchema:
		return fmt.Errorf("%w (is the schema outbox migrated? run: posthaste migrate up)", err)
	case pgsession.IsNoPartition(err):
		return fmt.Errorf("%w (outbox.events has no partition for today: run a reaper, OUTBOX_REAP=on in at least one process)", err)
	case pgsession.IsRowSecurity(err):
		return fmt.Errorf("%w (the role is tied to the tenant of app.tenant_id, or to none if that is not set: see posthaste docs guides/tenants)", err)
	}
	return err
}
