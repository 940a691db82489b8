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
	// ErrNotFound says that no job has the id: it is of another process, or what
	// became of it is no longer known. It is that of packages await and operator.
	ErrNotFound = engine.ErrNotFound
	// ErrNotStored says that something was called that works on a job's row in the database,
	// Complete, Guard, Then or dispatcher.StepTx: a job in memory has none.
	ErrNotStored = engine.ErrNotStored
	// ErrCancelled is the cause with which a handler's context ends after Cancel. It is
	// dispatcher.ErrCancelled.
	ErrCancelled = outcome.ErrCancelled
)

// Job is how a job is, or what became of it.
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
	ErrorCode    string    // of the latest attempt that failed; "shutdown" for a job that a stop has lost
	ErrorMessage string
}

// Ended reports whether nothing will change any more.
func (j Job) Ended() bool { return !j.FinishedAt.IsZero() }

// Progress is how far a job is, as its handler says.
type Progress struct {
	Current, Total int64 // in units that the handler knows
	Message        string
}

// Job returns how a job is, or [ErrNotFound].
func (q *Queue) Job(id outbox.ID) (Job, error) {
	q.store.mu.Lock()
	defer q.store.mu.Unlock()
	r, err := q.store.find(id)
	if err != nil {
		return Job{}, err
	}
	return r.job(), nil
}

// Wait returns a job when it has ended, or the cause of ctx if that ends first.
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

// UnfinishedError says that a job has no result: it has not ended, or not well.
type UnfinishedError struct{ Job Job }

func (e *UnfinishedError) Error() string {
	return fmt.Sprintf("result of job %s: it is %s", e.Job.ID, e.Job.Status)
}

// Result returns what the handler of [HandleResult] returned. It returns an
// [*UnfinishedError] for a job that has not succeeded, [ErrNotFound], and another
// error if the result is not an R.
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

// Cancel ends a job, and returns the status in which it was found. One that waits
// is cancelled at once. The context of one that runs ends with the cause
// [ErrCancelled]; it is cancelled when its handler returns an error, and succeeded
// if it returns none. One that has ended stays as it is. It returns [ErrNotFound].
func (q *Queue) Cancel(id outbox.ID) (was outbox.Status, err error) { return q.store.cancel(id) }

// ReportProgress notes how far the job of a handler's context is; the latest word
// counts. It reports false, and notes nothing, outside of the handlers of this package
// and once the handler has returned.
func ReportProgress(ctx context.Context, p Progress) bool {
	r, ok := ctx.Value(recorderKey{}).(*recorder)
	return ok && r.Progress(p.Current, p.Total, p.Message) == nil
}

// job is the record as callers see it. The store's mu is held.
func (r *record) job() Job {
	return Job{
		ID: r.id, Tenant: r.tenant, Kind: r.route.kind, Status: r.status, Attempt: r.attempt, MaxAttempts: r.maxAttempts, Progress: r.progress,
		SubmittedAt: r.submitted, StartedAt: r.started, FinishedAt: r.finished, ErrorCode: r.code, ErrorMessage: r.message,
	}
}
