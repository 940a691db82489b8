package probe

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// of returns an entry about an event of a job.
func of(event string, job *outbox.Job[Task]) ledger.Entry {
	return ledger.Entry{
		Event: event, Job: job.ID, N: job.Args.N, Do: job.Args.Do,
		Epoch: job.Epoch, Attempt: job.Attempt, Key: job.Args.Key,
	}
}

// beginner begins transactions: a pool or an outbox.Producer.
type beginner interface {
	Begin(context.Context) (pgx.Tx, error)
}

// commitError is an error that COMMIT returned.
type commitError struct{ err error }

func (e *commitError) Error() string { return "commit: " + e.err.Error() }
func (e *commitError) Unwrap() error { return e.err }

// inTx works like pgx.BeginFunc, but distinguishes a failure of COMMIT from one before it.
func inTx(ctx context.Context, db beginner, fn func(pgx.Tx) error) error {
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err := fn(tx); err != nil {
		rollBack(ctx, tx)
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		rollBack(ctx, tx)
		return &commitError{err}
	}
	return nil
}

// rollBack returns no error: the server rolls back when a connection breaks.
func rollBack(ctx context.Context, tx pgx.Tx) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), placeTimeout)
	defer cancel()
	_ = tx.Rollback(ctx)
}

// outcomeUnknown reports whether a transaction that failed with err may have committed: the connection broke, or we
// stopped waiting, between the COMMIT and its response. If the server refused the COMMIT, it has rolled back, except
// when it terminated the session (class 57): the commit may have taken effect before that.
func outcomeUnknown(err error) bool {
	if _, atCommit := errors.AsType[*commitError](err); !atCommit {
		return false
	}
	if errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) || pgconn.SafeToRetry(err) {
		return false
	}
	refused, ok := errors.AsType[*pgconn.PgError](err)
	return !ok || refused.Code[:2] == "57"
}

// class returns an error's class in one word.
func class(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, outbox.ErrLeaseLost):
		return "lease_lost"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "context"
	}
	return "error"
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func causeOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}
