package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/outcome"
	"github.com/posthaste-dev/posthaste/outbox"
)

var (
	// ErrNotFound reports that no job has the id: it belongs to another process, or its outcome is no longer known. It
	// is the ErrNotFound of packages await and operator.
	ErrNotFound = engine.ErrNotFound
	// ErrNotStored is returned by calls that need a job's row in the database (Complete, Guard, Then,
	// dispatcher.StepTx): a job in memory has none.
	ErrNotStored = engine.ErrNotStored
	// ErrCancelled is the cause with which Cancel ends a handler's context. It is dispatcher.ErrCancelled.
	ErrCancelled = outcome.ErrCancelled
)

// Job is the state or the outcome of a job.
type Job struct {
	ID           outbox.ID
	Tenant       outbox.ID
	Kind         string
	Status       outbox.Status // pending, running, retrying, succeeded, failed, dead or cancelled
	Attempt      int
	MaxAttempts  int
	Progress     Progress // the latest; zero if there was none
	SubmittedAt  time.Time
	StartedAt    time.Time // of the latest attempt; zero before the first
	FinishedAt   time.Time // zero before the end
	ErrorCode    string    // of the latest failed attempt; "shutdown" for a job that a stop lost
	ErrorMessage string
}

// Ended reports whether the job is final.
func (j Job) Ended() bool { return !j.FinishedAt.IsZero() }

// Progress is how far a job is, as reported by its handler.
type Progress struct {
	Current, Total int64 // in a unit of the handler's choice
	Message        string
}

// Job returns a job's state, or [ErrNotFound].
func (q *Queue) Job(id outbox.ID) (Job, error) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	r, err := q.store.find(id)
	if err != nil {
		return Job{}, err
	}
	return r.job(), nil
}

// Wait waits until a job has ended and returns it, or the cause of ctx if that ends first.
func (q *Queue) Wait(ctx context.Context, id outbox.ID) (Job, error) {
	q.store.mu.Lock()
	r, err := q.store.find(id)
	q.store.mu.Unlock()
	if err != nil {
		return Job{}, err
	}
	select {
	case <-r.done:
	case <-ctx.Done():
		return Job{}, fmt.Errorf("wait for job %s: %w", id, context.Cause(ctx))
	}
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	return r.job(), nil
}

// UnfinishedError reports that a job has no result, because it has not ended or did not succeed.
type UnfinishedError struct{ Job Job }

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("result of job %s: it is %s", e.Job.ID, e.Job.Status)
}

// Result returns the value that the handler of [HandleResult] returned. It returns an [*UnfinishedError] for a job that
// has not succeeded, [ErrNotFound] for an unknown one, and another error if the result is not an R.
func Result[R any](q *Queue, id outbox.ID) (R, error) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	var zero R
	r, err := q.store.find(id)
	if err != nil {
		return zero, err
	}
	if r.status != outbox.Succeeded {
		return zero, &UnfinishedError{r.job()}
	}
	result, ok := r.result.(R)
	if !ok {
		return zero, fmt.Errorf("result of job %s: it is a %T, not a %T", id, r.result, zero)
	}
	return result, nil
}

// Cancel ends a job and returns the status in which it found it, or [ErrNotFound]. It cancels a waiting job at once.
// For a running job, it ends the handler's context with the cause [ErrCancelled]; the job is then cancelled if its
// handler returns an error, and succeeded if it returns none. A job that has ended does not change.
func (q *Queue) Cancel(id outbox.ID) (was outbox.Status, err error) { return q.store.cancel(id) }

// ReportProgress records how far the job of a handler's context is; the latest report counts. Outside the handlers of
// this package, and once the handler has returned, it records nothing and returns false.
func ReportProgress(ctx context.Context, p Progress) bool {
	r, ok := ctx.Value(recorderKey{}).(*recorder)
	return ok && r.Progress(p.Current, p.Total, p.Message) == nil
}

// job returns the record as callers see it. The caller holds the store's mu.
func (r *record) job() Job {
	return Job{
		ID: r.id, Tenant: r.tenant, Kind: r.route.kind, Status: r.status, Attempt: r.attempt,
		MaxAttempts: r.maxAttempts, Progress: r.progress,
		SubmittedAt: r.submitted, StartedAt: r.started, FinishedAt: r.finished, ErrorCode: r.code,
		ErrorMessage: r.message,
	}
}
