package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/invalid"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outbox/codes"
)

// Step is a step of an attempt: its result is looked for, or stored, once. In a Claimed that a test made by hand no
// result is found, and Save stores nothing.
type Step struct {
	job     *outbox.Claimed
	reports *Reports // nil in a Claimed that a test made by hand
	name    string
	again   bool // it failed before in this attempt
}

// BeginStep takes the name of a step. The error says what is wrong with the name.
func BeginStep(job *outbox.Claimed, name string) (Step, error) {
	refuse := func(format string, args ...any) (Step, error) {
		return Step{}, fmt.Errorf("begin a step of job %s: %w", job.ID, invalid.Field("name", format, args...))
	}
	if fault := engine.NameFault(name); fault != "" {
		return refuse("%s", fault)
	}
	s := Step{job: job, name: name}
	s.reports, _ = engine.InternalOf(job).Recorder.(*Reports)
	if s.reports != nil {
		var err error
		if s.again, err = s.reports.beginStep(name); err != nil {
			return refuse("%s", err)
		}
	}
	return s, nil
}

// Failed frees the name of the step, so that the handler may try it again.
func (s Step) Failed() {
	if s.reports != nil {
		s.reports.stepFailed(s.name)
	}
}

// Storable reports whether SaveIn can store the result: it cannot for a job in memory.
func (s Step) Storable() bool { return s.reports != nil || engine.InternalOf(s.job).Recorder == nil }

// mayBeStored reports whether a result may be stored already. The first attempt need not ask, because none came before
// it, unless the step has failed in this attempt: its commit may have gone through all the same.
func (s Step) mayBeStored() bool { return s.again || s.job.Epoch != 1 }

// Find returns the result that is stored, if there is one. While the database is unreachable it waits, until ctx ends.
func (s Step) Find(ctx context.Context) (stored [][]byte, err error) {
	if s.reports == nil || !s.mayBeStored() {
		return nil, nil
	}
	return s.reports.findStep(ctx, s.name)
}

// FindIn returns the result that is stored, if there is one, as tx sees it.
func (s Step) FindIn(ctx context.Context, tx pgx.Tx) (stored [][]byte, err error) {
	if !s.mayBeStored() {
		return nil, nil
	}
	return sqlgen.New(tx).FindStep(ctx, pgvalue.UUID(s.job.ID), s.name)
}

// Save stores the result. took is how long the step ran.
func (s Step) Save(ctx context.Context, result any, took time.Duration) error {
	encoded, err := encodeStep(result)
	if err != nil || s.reports == nil {
		return err
	}
	return s.reports.saveStep(ctx, s.name, took, encoded)
}

// SaveIn stores the result in tx, and locks the job's row until its end. It returns [outbox.ErrLeaseLost] if this
// attempt no longer holds the job.
func (s Step) SaveIn(ctx context.Context, tx pgx.Tx, result any, took time.Duration) error {
	encoded, err := encodeStep(result)
	if err != nil {
		return err
	}
	stored, err := sqlgen.New(tx).RecordStep(ctx, sqlgen.RecordStepParams{
		ID: pgvalue.UUID(s.job.ID), Epoch: s.job.Epoch, StartedAt: pgvalue.TimeOrNull(s.job.StartedAt), Name: s.name,
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

// encodeStep encodes a result. A failure is final: the same code would produce the same result.
func encodeStep(result any) ([]byte, error) {
	encoded, err := json.Marshal(result)
	switch {
	case err != nil:
		err = fmt.Errorf("encode its result: %w", err)
	case !utf8.Valid(encoded):
		err = errors.New("its result is not valid UTF-8 as JSON")
	case len(encoded) > engine.MaxStepBytes:
		err = fmt.Errorf("its result is %d bytes as JSON, want at most %d; store large data elsewhere and return a reference",
			len(encoded), engine.MaxStepBytes)
	default:
		return encoded, nil
	}
	return nil, &outcome.Discarded{Err: outcome.WithCode(codes.StepNotStorable, err)}
}
