package operator

import (
	"context"
	"fmt"
	"slices"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Cancellation is the result of a request to cancel a job.
type Cancellation string

const (
	// Cancelled means that the job waited, or had been cancelled before. It will not run any more.
	Cancelled Cancellation = "cancelled"
	// CancelRequested means that the job is running. Its handler's context ends within a second, with the cause
	// dispatcher.ErrCancelled. The job ends cancelled when the handler returns an error or its worker dies, and
	// succeeded if the handler returns nil all the same.
	CancelRequested Cancellation = "requested"
)

// Cancel cancels a job: at once if it waits (created, pending, blocked or retrying), and by asking its handler to stop
// if it is running. Repeating it is harmless.
//
// It returns a [*StatusError] for a job that closed in another way, and for a dead letter, which can be dismissed; and
// [ErrNotFound]. It waits for up to 10 s for a transaction that has locked the job, such as a handler's own that has
// called Complete or Guard.
func (o *Operator) Cancel(ctx context.Context, id outbox.ID) (Cancellation, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.CancelJob(ctx, sqlgen.CancelJobParams{
		ID: pgvalue.UUID(id), Among: o.only, AtEpoch: o.epoch,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	status := outbox.Status(found.Status)
	switch {
	case err != nil:
		return "", fmt.Errorf("cancel job %s: %w", id, err)
	case found.Excluded:
		return "", &StatusError{ID: id, Status: status, Act: "cancel"}
	}
	switch status {
	case outbox.Cancelled:
		return Cancelled, nil
	case outbox.Running:
		return CancelRequested, nil
	case "":
		return "", fmt.Errorf("cancel job %s: %w", id, ErrNotFound)
	}
	return "", &StatusError{ID: id, Status: status, Act: "cancel"}
}

// Release lets a held job run as soon as a worker is free and its run_at has come. It returns a [*StatusError] for a
// job that is not held, and [ErrNotFound].
func (o *Operator) Release(ctx context.Context, id outbox.ID) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	if len(o.only) > 0 && !slices.Contains(o.only, string(outbox.Created)) {
		return o.refuse(ctx, id, "release")
	}
	status, err := o.db.ReleaseJob(ctx, sqlgen.ReleaseJobParams{
		ID: pgvalue.UUID(id), AtEpoch: o.epoch,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return fmt.Errorf("release job %s: %w", id, err)
	case status == "":
		return o.refuse(ctx, id, "release")
	case outbox.Status(status) != outbox.Created:
		return &StatusError{ID: id, Status: outbox.Status(status), Act: "release"}
	}
	return nil
}
