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
)

// Step runs a part of a job once and remembers what it returned: later attempts of
// the job get the same result without running fn. If the process dies after fn
// has returned and before its result is stored, fn runs again: give what it calls
// an idempotency key, or use [StepTx].
//
// The name tells the steps of a job apart, like the name of a kind: letters,
// digits and _ . : / -. A second step of the same name in one attempt is an error,
// unless the first one failed. The result is stored as JSON, of at most
// 256 KiB; one that is not acceptable, or no longer decodes into R
// because the program has changed, fails the job for good. What JSON does not keep
// of R, later attempts do not get.
//
// A job that an operator has run again with another payload keeps the results of its
// steps, unless the operator has it forget them.
//
// It returns [outbox.ErrLeaseLost] if the job is no longer this attempt's. While
// the database is away it waits for it, until ctx ends. In a Claimed that a test
// made by hand nothing is remembered.
func Step[R any](ctx context.Context, job *outbox.Claimed, name string, fn func(ctx context.Context) (R, error)) (R, error) {
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

// StepTx is [Step] for an effect in the database that the jobs are in: it begins a
// transaction on db, fn makes its changes through tx, and both they and the memory
// of the step are committed together. So they are made exactly once, whatever
// crashes, and not at all if the job is no longer this attempt's. fn must not end
// tx.
//
// The job's row is locked only when fn has returned. A transaction that outlasts
// the lease is thus rolled back if another worker has taken the job over
// meanwhile. If db begins its transactions at REPEATABLE READ or SERIALIZABLE, call
// job.Guard first in fn: otherwise the step fails with a serialization failure
// (SQLSTATE 40001) if the lease was extended while fn ran.
//
// In package memory it returns memory.ErrNotStored and does not call fn.
func StepTx[R any](ctx context.Context, job *outbox.Claimed, db outbox.Beginner, name string, fn func(ctx context.Context, tx pgx.Tx) (R, error)) (R, error) {
	var none, result R
	s, err := beginStep(job, name)
	if err != nil {
		return none, err
	}
	if s.reports == nil && engine.Of(job).Recorder != nil {
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
	s.reports, _ = engine.Of(job).Recorder.(*report.Reports)
	if s.reports != nil {
		var err error
		if s.again, err = s.reports.BeginStep(name); err != nil {
			return refuse("%s", err)
		}
	}
	return s, nil
}

// mayBeStored spares the first attempt the question: nobody came before it. But
// after an error, a commit of its own may have gone through.
func (s step) mayBeStored() bool { return s.again || s.job.Epoch != 1 }

// finishStep decodes what is remembered, if anything is, and frees the name of a
// step that failed: the handler may try it again.
func finishStep[R any](s step, stored [][]byte, result R, err error) (R, error) {
	var none R
	if err == nil && len(stored) > 0 {
		result = none
		if err = json.Unmarshal(stored[0], &result); err != nil {
			err = Discard(outcome.WithCode("undecodable_step", fmt.Errorf("its result of an earlier attempt does not decode into %T: %w", none, err)))
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

// encode fails for good: the same code would make the same of it.
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
	return nil, Discard(outcome.WithCode("step_not_storable", err))
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
