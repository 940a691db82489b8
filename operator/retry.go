package operator

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Retry makes a job run again as soon as a worker is free. A dead letter becomes pending with all its attempts
// available again and its lost leases reset; a waiting job, pending or retrying, becomes due now and keeps its count.
// Retry raises the epoch: writes of an earlier worker of the job are refused.
//
// It returns a [*StatusError] for a job in another status, [ErrPastDeadline], or [ErrNotFound].
func (o *Operator) Retry(ctx context.Context, id outbox.ID) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	found, err := o.db.RetryJob(ctx, sqlgen.RetryJobParams{
		ID: pgvalue.UUID(id), Among: o.only, AtEpoch: o.epoch,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return fmt.Errorf("retry job %s: %w", id, err)
	case len(found) == 0:
		return o.refuse(ctx, id, "retry")
	case found[0].Late:
		return fmt.Errorf("retry job %s: %w", id, ErrPastDeadline)
	case !found[0].Moved:
		return &StatusError{ID: id, Status: outbox.Status(found[0].Status), Act: "retry"}
	}
	return nil
}

// Dismiss moves a dead letter to the history as dismissed. It returns a [*StatusError] for a job in another status, and
// [ErrNotFound].
func (o *Operator) Dismiss(ctx context.Context, id outbox.ID) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	moved, err := o.db.DismissJob(ctx, sqlgen.DismissJobParams{
		ID: pgvalue.UUID(id), Among: o.only, AtEpoch: o.epoch,
		Actor: o.by.actor, RequestID: o.by.requestID, Reason: o.by.reason,
	})
	switch {
	case err != nil:
		return fmt.Errorf("dismiss job %s: %w", id, err)
	case len(moved) == 0:
		return o.refuse(ctx, id, "dismiss")
	}
	return nil
}

// refuse returns the reason for which nothing was done. It looks in a statement of its own, which sees what the first
// one may just have missed: a job that closed meanwhile.
func (o *Operator) refuse(ctx context.Context, id outbox.ID, act string) error {
	job, err := o.jobTo(ctx, act, id)
	if err != nil {
		return err
	}
	return &StatusError{ID: id, Status: job.Status, Act: act}
}

// jobTo returns a job as Job does, with errors that name the intended act.
func (o *Operator) jobTo(ctx context.Context, act string, id outbox.ID) (Job, error) {
	job, err := o.Job(ctx, id)
	if errors.Is(err, ErrNotFound) {
		return Job{}, fmt.Errorf("%s job %s: %w", act, id, ErrNotFound)
	}
	if err != nil {
		return Job{}, fmt.Errorf("%s: %w", act, err)
	}
	return job, nil
}
