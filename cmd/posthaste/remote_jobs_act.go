package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/client"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Cancel derives the result from the job's status.
func (r *remote) Cancel(ctx context.Context, id outbox.ID) (operator.Cancellation, error) {
	ctx, cancel := patient(ctx)
	defer cancel()
	job, err := r.api.CancelJob(ctx, id.String())
	switch {
	case err != nil:
		return "", fmt.Errorf("cancel job %s: %w", id, err)
	case job.Status == string(outbox.Running):
		return operator.CancelRequested, nil
	}
	return operator.Cancelled, nil
}

func (r *remote) Release(ctx context.Context, id outbox.ID) error {
	return r.act(ctx, "release", id, r.api.ReleaseJob)
}

func (r *remote) Retry(ctx context.Context, id outbox.ID) error {
	return r.act(ctx, "retry", id, r.api.RetryJob)
}

func (r *remote) Dismiss(ctx context.Context, id outbox.ID) error {
	return r.act(ctx, "dismiss", id, r.api.DismissJob)
}

func (r *remote) act(ctx context.Context, verb string, id outbox.ID,
	do func(context.Context, string) (client.Job, error),
) error {
	ctx, cancel := patient(ctx)
	defer cancel()
	if _, err := do(ctx, id.String()); err != nil {
		return fmt.Errorf("%s job %s: %w", verb, id, err)
	}
	return nil
}

// only returns a remote that acts on jobs only if they are in one of the statuses when their turn comes.
func (r *remote) only(statuses []outbox.Status) *remote {
	strict := *r
	for _, s := range statuses {
		strict.while = append(strict.while, string(s))
	}
	return &strict
}

// actOnSome acts on jobs that are named, mostly in one request. Its error names jobs for which it is unknown whether
// the act was done.
func (r *remote) actOnSome(ctx context.Context, act string, jobs []foundJob, dry bool) (d partDone, err error) {
	which := client.Bulk{While: r.while, DryRun: dry, Reason: r.reason}
	for _, job := range jobs {
		which.IDs = append(which.IDs, job.id.String())
		if job.epoch != nil && !dry {
			which.Epochs = append(which.Epochs, *job.epoch)
		}
	}
	if len(which.Epochs) < len(which.IDs) {
		which.Epochs = nil // a token sees those of all jobs, or of none
	}
	do := map[string]func(context.Context, client.Bulk) (client.BulkResult, error){
		cancelAct.name: r.api.CancelJobs, releaseAct.name: r.api.ReleaseJobs, retryAct.name: r.api.RetryJobs,
		dismissAct.name: r.api.DismissJobs,
	}[act]
	patiently := func(ctx context.Context, which client.Bulk) (client.BulkResult, error) {
		ctx, cancel := patient(ctx)
		defer cancel()
		return do(ctx, which)
	}
	var unknown []client.Outcome
	for result, err := range client.InParts(ctx, which, patiently) {
		if err != nil {
			return d, errors.Join(notKnown(act, unknown), err)
		}
		for _, job := range result.Jobs {
			switch job.Code {
			case "":
				d.done++
			case client.CodeJobNotFound, client.CodeJobStatusConflict:
				d.passed++
			case client.CodeRowLocked:
				d.locked = append(d.locked, job.ID)
			default:
				unknown = append(unknown, job)
			}
			if job.Requested {
				d.requested++
			}
		}
	}
	return d, notKnown(act, unknown)
}

// notKnown returns nil for no jobs, and names the first few of many.
func notKnown(act string, jobs []client.Outcome) error {
	return firstFew(jobs, func(job client.Outcome) error {
		return fmt.Errorf("%s job %s: %s: whether it was done is not known", act, job.ID, job.Code)
	})
}

// lockedOut does the same for jobs on which nothing was done, because another transaction had locked them.
func lockedOut(act string, ids []string) error {
	return firstFew(ids, func(id string) error {
		return fmt.Errorf("%s job %s: another transaction has locked it: nothing was done", act, id)
	})
}

func firstFew[T any](jobs []T, say func(T) error) error {
	const named = 5
	var errs []error
	for _, job := range jobs[:min(named, len(jobs))] {
		errs = append(errs, say(job))
	}
	if more := len(jobs) - named; more > 0 {
		errs = append(errs, fmt.Errorf("and so of %d more", more))
	}
	return errors.Join(errs...)
}

// onDeadLetter acts on a job if it is a dead letter when its turn comes, and reports whether it was.
func (r *remote) onDeadLetter(ctx context.Context, a jobAct, id outbox.ID) (done bool, err error) {
	d, err := r.only(deadLetters).actOnSome(ctx, a.name, []foundJob{{id: id}}, false)
	return d.done > 0, errors.Join(err, lockedOut(a.name, d.locked))
}
