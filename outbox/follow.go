package outbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// Then adds a follow-up: a job that is stored by the same statement that settles this one as succeeded. It exists
// exactly when that settlement does, also when [Claimed.Complete] settles the job in the handler's own transaction. If
// the attempt fails, is snoozed or interrupted, or has lost its lease, nothing is stored; the next attempt adds its own
// follow-ups.
//
// The follow-up belongs to this job's tenant and records it as its parent. If Options.Headers and Options.Caller are
// unset, it takes this job's headers, except those of a schedule's tick, so that a trace continues. Then refuses an
// idempotency key, another tenant and Key.MaxQueued, because a follow-up is always stored, once, as given. It ignores
// them in the kind's DefaultOptions, where they are meant for other jobs.
//
// A request that is not acceptable gets [*InvalidError]s, joined, and adds nothing; the same goes for more than 100
// follow-ups, or more than 4 MiB of payloads and headers. After the handler has returned or called Complete, Then
// returns an error. It is safe for concurrent use. The attempt's context limits how long Options.Protect may take.
func (c *Claimed) Then(args Args, opts Options) (ID, error) {
	var errs []error
	if opts.IdempotencyKey != "" {
		errs = append(errs, invalid("Options.IdempotencyKey",
			"is set, which a follow-up cannot have: it exists once, with its parent's settlement"))
	}
	if opts.Key.MaxQueued != 0 || opts.Key.WhenFull != "" {
		errs = append(errs, invalid("Options.Key.MaxQueued",
			"or WhenFull is set, which a follow-up cannot have: no caller would get the error when the key is full"))
	}
	if !opts.Tenant.IsZero() && opts.Tenant != c.Tenant {
		errs = append(errs, invalid("Options.Tenant",
			"is %s, want none: a follow-up belongs to the tenant of its parent, %s", opts.Tenant, c.Tenant))
	}
	opts.fillFrom(args) // the row takes no idempotency key and no MaxQueued from it
	opts.Tenant = c.Tenant
	ctx := engine.InternalOf(c).Context // a protector may ask a server; the attempt's time bounds that
	if ctx == nil {
		ctx = context.Background()
	}
	job, err := newRow(ctx, args, &opts)
	if opts.Headers == nil && opts.Caller == (Caller{}) {
		job.Headers = engine.InheritedHeaders(c.RawHeaders)
	}
	job.Headers = withContext(job.Headers, engine.InternalOf(c).Trace)
	if err = errors.Join(append(errs, err)...); err == nil {
		err = c.add(job)
	}
	if err != nil {
		return ID{}, fmt.Errorf("follow-up of job %s: %w", c.ID, err)
	}
	return ID(job.ID.Bytes), nil
}

func (c *Claimed) add(job row) error {
	attempt := engine.InternalOf(c)
	switch bytes, err := attempt.FollowUps.Add(job, attempt.Completed.Load()); err {
	case engine.ErrTooMany:
		return invalid("Then", "was called %d times, want at most %d follow-ups a job", engine.MaxFollowUps+1,
			engine.MaxFollowUps)
	case engine.ErrTooLarge:
		return invalid("Then", "has %d bytes of follow-ups, want at most %d", bytes, engine.MaxFollowUpBytes)
	default:
		return err
	}
}
