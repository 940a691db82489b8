package await

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/protect"
)

// ErrOpen reports that a job has not ended yet.
var ErrOpen = errors.New("the job has not ended yet")

// A Ref refers to a job whose result is an R. It may be copied.
type Ref[R any] struct {
	ID     outbox.ID
	waiter *Waiter
}

// Enqueue enqueues a job that will be waited for, as [outbox.Enqueue] does, marks it as watched, and returns a
// reference to it. Wait after the transaction has committed. If the idempotency key was used before, the reference is
// to the first job.
func Enqueue[R any](ctx context.Context, w *Waiter, db outbox.DB, args outbox.ResultArgs[R],
	opts outbox.Options,
) (Ref[R], error) {
	id, err := outbox.Enqueue(ctx, db, args, Watched(opts))
	return Ref[R]{ID: id, waiter: w}, err
}

// Watched returns opts for a job that will be waited for but is not enqueued by [Enqueue], such as one of many or a
// follow-up. Its end is announced to waiters at once.
func Watched(opts outbox.Options) outbox.Options {
	*engine.InternalOf(&opts) = true
	return opts
}

var errNoWaiter = errors.New("the reference has no waiter: make it with await.Enqueue or await.RefTo")

// RefTo returns a reference to the job with the given id, whose handler returns an R. For a job without a result, R is
// struct{}.
func RefTo[R any](w *Waiter, id outbox.ID) Ref[R] { return Ref[R]{ID: id, waiter: w} }

// Wait waits for the job to end. It returns the result of a job that succeeded, a [*JobError] for one that ended
// otherwise, [ErrNotFound] if the job was not found for 10 seconds, and the cause of ctx if that ends first.
//
// Wait also returns an error if the job succeeded without a result ([ErrNoResult]), if its result is not an R (the
// error of encoding/json), or if [Config].Protect does not open a sealed result: the protector's error, like
// protect.ErrUnreadable, or a [*protect.SealedError] if there is no Protect. The waiter must be running.
func (r Ref[R]) Wait(ctx context.Context) (result R, err error) {
	if r.waiter == nil {
		return result, errNoWaiter
	}
	end, err := r.waiter.wait(ctx, r.ID)
	if err != nil {
		return result, fmt.Errorf("wait for job %s: %w", r.ID, err)
	}
	return decode(ctx, r, end)
}

// Status returns the job's current status, or [ErrNotFound].
func (r Ref[R]) Status(ctx context.Context) (outbox.Status, error) {
	now, err := r.look(ctx)
	return now.status, err
}

// Result returns the result of a job that has already ended, as Wait does. It returns [ErrOpen] for a job that has not,
// and [ErrNotFound] at once.
func (r Ref[R]) Result(ctx context.Context) (result R, err error) {
	now, err := r.look(ctx)
	if err != nil {
		return result, err
	}
	if !now.ended() {
		return result, fmt.Errorf("result of job %s, which is %s: %w", r.ID, now.status, ErrOpen)
	}
	return decode(ctx, r, now)
}

func (r Ref[R]) look(ctx context.Context) (end, error) {
	if r.waiter == nil {
		return end{}, errNoWaiter
	}
	found, err := sqlgen.New(r.waiter.user).FindOutcome(ctx, pgvalue.UUID(r.ID))
	if err != nil {
		return end{}, fmt.Errorf("look at job %s: %w", r.ID, err)
	}
	if len(found) == 0 {
		return end{}, fmt.Errorf("look at job %s: %w", r.ID, ErrNotFound)
	}
	f := found[0]
	return end{
		status: outbox.Status(f.Status), tenant: f.TenantID.Bytes, result: f.Result, code: f.ErrorCode,
		message: f.ErrorMessage,
	}, nil
}

// end is the state of a job, which is final if it has ended.
type end struct {
	status        outbox.Status // "" for a missing job
	tenant        outbox.ID     // set for a job with a result
	result        []byte
	code, message string
}

func (e end) ended() bool {
	return e.status.Closed() || e.status == outbox.Failed || e.status == outbox.Dead
}

// decode runs in the waiting caller's goroutine, because a protector may fetch the result from a store.
func decode[R any](ctx context.Context, ref Ref[R], e end) (result R, err error) {
	if e.status != outbox.Succeeded {
		return result, &JobError{ID: ref.ID, Status: e.status, Code: e.code, Message: e.message}
	}
	stored := e.result
	if p := ref.waiter.protect; p != nil {
		if stored, err = protect.OpenResult(ctx, p, e.tenant, ref.ID, stored); err != nil {
			return result, err
		}
	}
	return DecodeResult[R](ref.ID, stored)
}
