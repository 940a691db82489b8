package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Step runs a part of a job once and stores its result: later attempts of the job get the same result without running
// fn. If the process dies after fn has returned and before its result is stored, fn runs again: pass an idempotency key
// to whatever it calls, or use [StepTx].
//
// The name distinguishes the steps of a job. Like the name of a kind it consists of letters, digits and _ . : / -. A
// second step of the same name in one attempt is an error, unless the first one failed. The result is stored as JSON of
// at most 256 KiB. A result that cannot be stored fails the job permanently, and so does a stored one that no longer
// decodes into R because the program has changed. Later attempts do not get the parts of R that JSON does not preserve.
//
// A job that an operator runs again with another payload keeps the results of its steps, unless the operator asks to
// forget them.
//
// Step returns [outbox.ErrLeaseLost] if this attempt no longer holds the job. While the database is unavailable it
// waits until ctx ends. In a Claimed that a test made by hand it stores nothing. Several goroutines of the handler may
// run steps at once.
func Step[R any](ctx context.Context, job *outbox.Claimed, name string,
	fn func(ctx context.Context) (R, error),
) (R, error) {
	var none R
	s, err := report.BeginStep(job, name)
	if err != nil {
		return none, err
	}
	stored, err := s.Find(ctx)
	if err != nil || len(stored) > 0 {
		return finishStep(s, name, stored, none, err)
	}
	started := time.Now()
	result, err := fn(ctx)
	if err != nil {
		return finishStep(s, name, nil, none, err)
	}
	if err = s.Save(ctx, result, time.Since(started)); err != nil { // fn has run: the name stays taken
		return none, fmt.Errorf("step %s: %w", name, err)
	}
	return result, nil
}

// StepTx runs a part of a job as [Step] does, for an effect in the jobs' own database. It begins a transaction on db,
// fn makes its changes through tx, and the changes and the step's result commit together. So the changes are made
// exactly once, whatever crashes, and not at all if this attempt no longer holds the job. fn must not end tx.
//
// StepTx locks the job's row only after fn has returned. So a transaction that outlasts the lease is rolled back if
// another worker has taken the job over meanwhile. If db begins its transactions at REPEATABLE READ or SERIALIZABLE,
// call job.Guard first in fn: otherwise the step fails with a serialization failure (SQLSTATE 40001) if the lease was
// extended while fn ran.
//
// With package memory StepTx returns memory.ErrNotStored and does not call fn.
func StepTx[R any](ctx context.Context, job *outbox.Claimed, db outbox.Beginner, name string,
	fn func(ctx context.Context, tx pgx.Tx) (R, error),
) (R, error) {
	var none, result R
	s, err := report.BeginStep(job, name)
	if err != nil {
		return none, err
	}
	if !s.Storable() {
		return none, fmt.Errorf("step %s: %w", name, engine.ErrNotStored)
	}
	var stored [][]byte
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		if stored, err = s.FindIn(ctx, tx); err != nil || len(stored) > 0 {
			return err
		}
		started := time.Now()
		if result, err = fn(ctx, tx); err != nil {
			return err
		}
		return s.SaveIn(ctx, tx, result, time.Since(started))
	})
	if err != nil {
		return finishStep(s, name, nil, none, err)
	}
	return finishStep(s, name, stored, result, nil)
}

// finishStep decodes the stored result, if there is one. It frees the name of a step that failed, so that the handler
// may try it again.
func finishStep[R any](s report.Step, name string, stored [][]byte, result R, err error) (R, error) {
	var none R
	if err == nil && len(stored) > 0 {
		result = none
		if err = json.Unmarshal(stored[0], &result); err != nil {
			err = Discard(outcome.WithCode(codes.UndecodableStep,
				fmt.Errorf("its result of an earlier attempt does not decode into %T: %w", none, err)))
		}
	}
	if err == nil {
		return result, nil
	}
	s.Failed()
	return none, fmt.Errorf("step %s: %w", name, err)
}
