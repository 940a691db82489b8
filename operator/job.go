package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Job is a job as it is stored, open or closed. Times are the database's; a time that does not apply is zero.
type Job struct {
	ID          outbox.ID
	Tenant      outbox.ID
	Parent      outbox.ID // of a follow-up or a hook: the job whose end stored it; zero for others
	Queue       string
	Kind        string
	Status      outbox.Status
	Priority    int
	Attempt     int // out of MaxAttempts; 0 before the first
	MaxAttempts int
	LostLeases  int
	Epoch       int64
	Key         string
	Timeout     time.Duration  // 0 means the kind's
	Backoff     outbox.Backoff // nil means the kind's
	Streamed    bool           // each change of it is stored as an event

	CreatedAt      time.Time
	RunAt          time.Time // when it became or becomes due
	Deadline       time.Time // zero if it has none
	StartedAt      time.Time // of the latest attempt
	FinishedAt     time.Time // zero while the job is open
	LeaseExpiresAt time.Time // zero unless it is running
	// CancelRequestedAt is when its handler was asked to stop; zero unless the job was cancelled while it was running.
	// The job may succeed all the same.
	CancelRequestedAt time.Time
	// PastDeadline is set if the job is open and its deadline has passed by the database's clock, so that Retry refuses
	// it. [Operator.Job] and [Operator.Find] set it; lists do not.
	PastDeadline bool
	Worker       string // that holds the lease, or closed the job; "" if none

	ErrorCode    string // of the latest failed attempt; "" for none
	ErrorMessage string

	ContentType  string
	PayloadBytes int

	// These are omitted from the jobs of [Operator.Jobs].
	Payload  []byte
	Headers  json.RawMessage // nil for none
	Result   []byte          // as stored: protect.OpenResult opens a sealed one
	Attempts []Attempt       // failed ones, newest first, the newest 100 at most
}

// Attempt is an attempt that failed.
type Attempt struct {
	Attempt      int
	Epoch        int64
	Worker       string
	StartedAt    time.Time
	FinishedAt   time.Time
	ErrorCode    string
	ErrorMessage string
	Stack        string // of a panic
}

const maxAttempts = 100

// Job returns a job with its payload and its failed attempts, or [ErrNotFound]. In a context that [WithTenant] has tied
// to a tenant, it finds only that tenant's jobs, whatever the database would show.
func (o *Operator) Job(ctx context.Context, id outbox.ID) (Job, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.FindJob(ctx, pgvalue.UUID(id), pgvalue.UUIDOrNull(tenantIn(ctx)))
	if err != nil {
		return Job{}, fmt.Errorf("find job %s: %w", id, err)
	}
	if len(found) == 0 {
		return Job{}, fmt.Errorf("find job %s: %w", id, ErrNotFound)
	}
	job := fromRow(found[0].Shown())
	job.Payload, job.Headers, job.Result, job.PastDeadline = found[0].Payload, found[0].Headers, found[0].Result,
		found[0].Late
	job.Attempts, err = o.attempts(ctx, id)
	return job, err
}

// Attempts returns the failed attempts of a job, newest first, the newest 100 at most, or [ErrNotFound].
func (o *Operator) Attempts(ctx context.Context, id outbox.ID) ([]Attempt, error) {
	attempts, err := o.attempts(ctx, id)
	if err == nil && len(attempts) == 0 {
		err = o.exists(ctx, id)
	}
	return attempts, err
}

// exists returns [ErrNotFound] if there is no such job, or none of the tenant to which the context is tied.
func (o *Operator) exists(ctx context.Context, id outbox.ID) error {
	found, err := o.Find(ctx, []Wanted{{ID: id, Tenant: tenantIn(ctx)}})
	if err == nil && found[0].ID.IsZero() {
		err = fmt.Errorf("find job %s: %w", id, ErrNotFound)
	}
	return err
}

func (o *Operator) attempts(ctx context.Context, id outbox.ID) ([]Attempt, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	rows, err := o.db.ListAttempts(ctx, pgvalue.UUID(id), maxAttempts)
	if err != nil {
		return nil, fmt.Errorf("list the attempts of job %s: %w", id, err)
	}
	var attempts []Attempt
	for _, a := range rows {
		attempts = append(attempts, Attempt{
			Attempt: int(a.Attempt), Epoch: a.Epoch, Worker: a.Worker, StartedAt: a.StartedAt.Time,
			FinishedAt: a.FinishedAt.Time,
			ErrorCode:  a.ErrorCode, ErrorMessage: a.ErrorMessage, Stack: a.Stack,
		})
	}
	return attempts, nil
}

// Result returns the size of a closed job's result, and the result as it is stored, unless it is more than most bytes.
// It returns [ErrNotFound] for a job that is not closed. A context of [WithTenant] counts as it does for
// [Operator.Job].
func (o *Operator) Result(ctx context.Context, id outbox.ID, most int) (size int, result []byte, err error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.FindResult(ctx, sqlgen.FindResultParams{
		ID: pgvalue.UUID(id), Tenant: pgvalue.UUIDOrNull(tenantIn(ctx)), Most: int64(most),
	})
	switch {
	case err != nil:
		return 0, nil, fmt.Errorf("find the result of job %s: %w", id, err)
	case len(found) == 0:
		return 0, nil, fmt.Errorf("find the result of job %s: %w", id, ErrNotFound)
	}
	return int(found[0].Bytes), found[0].Result, nil
}

func fromRow(row sqlgen.ListJobsRow) Job {
	return Job{
		ID: row.ID.Bytes, Tenant: row.TenantID.Bytes, Parent: row.ParentID.Bytes, Queue: row.Queue, Kind: row.Kind,
		Status:   outbox.Status(row.Status),
		Priority: int(row.Priority), Attempt: int(row.Attempt), MaxAttempts: int(row.MaxAttempts),
		LostLeases: int(row.LostLeases),
		Epoch:      row.Epoch, Key: row.Key, Timeout: pgvalue.Duration(row.Timeout),
		Backoff:   pgvalue.Durations(row.Backoff),
		CreatedAt: row.CreatedAt.Time, RunAt: row.RunAt.Time, StartedAt: row.StartedAt.Time,
		FinishedAt:     row.FinishedAt.Time,
		LeaseExpiresAt: row.LeaseExpiresAt.Time, Worker: row.Worker, Streamed: row.Streamed,
		Deadline: row.Deadline.Time, CancelRequestedAt: row.CancelRequestedAt.Time,
		ErrorCode: row.ErrorCode, ErrorMessage: row.ErrorMessage,
		ContentType: row.ContentType, PayloadBytes: int(row.PayloadBytes),
	}
}
