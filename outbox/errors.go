package outbox

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgconn"
)

// ErrLeaseLost says that a worker no longer owns the job: its lease lapsed and
// another took over, or an operator took the job away. It is the cause of the
// handler's cancelled context, and what [Claimed.Complete] and [Claimed.Guard]
// return; a transaction that gets it must roll back.
var ErrLeaseLost = errors.New("lease lost")

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

// explain adds what to do to an error that every newcomer meets once.
func explain(err error) error {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && (pgErr.Code == "42P01" || pgErr.Code == "3F000") {
		return fmt.Errorf("%w (is the schema outbox migrated? run: posthaste migrate up)", err)
	}
	return err
}
