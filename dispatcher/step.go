package dispatcher

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/report"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
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
	s, err := beginStep(job, name)
	if err != nil {
		return none, err
	}
	if s.reports != nil && s.mayBeStored() {
		stored, err := s.reports.FindStep(ctx, name)
		if err != nil || len(stored) > 0 {
			return finishStep(s, stored, none, err)
		}
	}
	started := time.Now()
	result, err := fn(ctx)
	if err != nil {
		return finishStep(s, nil, none, err)
	}
	encoded, err := s.encode(result)
	if err == nil && s.reports != nil {
		err = s.reports.SaveStep(ctx, name, time.Since(started), encoded)
	}
	if err != nil { // fn has run: the name stays taken
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
	s, err := beginStep(job, name)
	if err != nil {
		return none, err
	}
	if s.reports == nil && engine.InternalOf(job).Recorder != nil {
		return none, fmt.Errorf("step %s: %w", name, engine.ErrNotStored)
	}
	var stored [][]byte
	err = pgx.BeginFunc(ctx, db, func(tx pgx.Tx) (err error) {
		if s.mayBeStored() {
			if stored, err = sqlgen.New(tx).FindStep(ctx, pgvalue.UUID(s.job.ID), name); err != nil || len(stored) > 0 {
				return err
			}
		}
		started := time.Now()
		if result, err = fn(ctx, tx); err != nil {
			return err
		}
		return s.saveIn(ctx, tx, result, time.Since(started))
	})
	if err != nil {
		return finishStep(s, nil, none, err)
	}
	return finishStep(s, stored, result, nil)
}

// step is one call of Step or StepTx.
type step struct {
	job     *outbox.Claimed
	reports *report.Reports // nil in a Claimed that a test made by hand
	name    string
	again   bool // it failed before in this attempt
}

func beginStep(job *outbox.Claimed, name string) (step, error) {
	refuse := func(format string, args ...any) (step, error) {
		return step{}, fmt.Errorf("begin a step of job %s: %w", job.ID, invalid.Field("name", format, args...))
	}
	if fault := engine.NameFault(name); fault != "" {
		return refuse("%s", fault)
	}
	s := step{job: job, name: name}
	s.reports, _ = engine.InternalOf(job).Recorder.(*report.Reports)
	if s.reports != nil {
		var err error
		if s.again, err = s.reports.BeginStep(name); err != nil {
			return refuse("%s", err)
		}
	}
	return s, nil
}

// mayBeStored reports whether a result may be stored already. The first attempt need not ask, because none came before
// it, unless the step has failed in this attempt: its commit may have gone through all the same.
func (s step) mayBeStored() bool { return s.again || s.job.Epoch != 1 }

// finishStep decodes the stored result, if there is one. It frees the name of a step that failed, so that the handler
// may try it again.
func finishStep[R any](s step, stored [][]byte, result R, err error) (R, error) {
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
	if s.reports != nil {
		s.reports.StepFailed(s.name)
	}
	return none, fmt.Errorf("step %s: %w", s.name, err)
}

// encode encodes a result. A failure is final: the same code would produce the same result.
func (s step) encode(result any) ([]byte, error) {
	encoded, err := json.Marshal(result)
	switch {
	case err != nil:
		err = fmt.Errorf("encode its result: %w", err)
	case !utf8.Valid(encoded):
		err = errors.New("its result is not valid UTF-8 as JSON")
	case len(encoded) > engine.MaxStepBytes:
		err = fmt.Errorf("its result is %d bytes as JSON, want at most %d; store large data elsewhere and return a reference", len(encoded), engine.MaxStepBytes)
	default:
		return encoded, nil
	}
	return nil, Discard(outcome.WithCode(codes.StepNotStorable, err))
}

func (s step) saveIn(ctx context.Context, tx pgx.Tx, result any, took time.Duration) error {
	encoded, err := s.encode(result)
	if err != nil {
		return err
	}
	stored, err := sqlgen.New(tx).RecordStep(ctx, sqlgen.RecordStepParams{
		ID: pgvalue.UUID(s.job.ID), Epoch: s.job.Epoch, Name: s.name,
		Took: pgvalue.Interval(took), Result: encoded,
	})
	switch {
	case err != nil:
		return fmt.Errorf("remember it: %w", engine.ExplainSnapshot(err))
	case len(stored) == 0:
		return outbox.ErrLeaseLost
	case !stored[0]:
		return errors.New("it is remembered already")
	}
	return nil
}
