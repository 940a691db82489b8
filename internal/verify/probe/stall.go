package probe

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// zombiePatience bounds what a worker does after it was continued. The row waits for a minute.
const zombiePatience = 50 * time.Second

// stall waits until the process, which is stopped in between, is continued. Then it does what its verb says, whatever
// its context says. The verbs that end in -late first wait for the end of their context.
func (h *handlers) stall(ctx context.Context, job *outbox.Job[Task]) error {
	h.book.Write(of(ledger.Stalled, job))
	<-h.woken
	stubborn, cancel := context.WithTimeout(context.WithoutCancel(ctx), zombiePatience)
	defer cancel()
	switch job.Args.Verb {
	case "succeed":
		return nil
	case "result":
		job.Result = []byte(`"a zombie's"`)
		return nil
	case "succeed-late":
		return h.awaitEnd(ctx, stubborn, nil)
	case "fail":
		return errors.New("a zombie fails")
	case "fail-late": // the worker treats it as an interruption, and gives the job back
		return h.awaitEnd(ctx, stubborn, errors.New("a zombie fails"))
	case "discard":
		return dispatcher.Discard(errors.New("a zombie gives up"))
	case "snooze":
		return dispatcher.Snooze(time.Hour)
	case "snooze-late":
		return h.awaitEnd(ctx, stubborn, dispatcher.Snooze(time.Hour))
	case "extend": // the worker extends leases by itself; the handler sees only the end of its context
		return h.awaitEnd(ctx, stubborn, nil)
	case "guard":
		return h.awaitEnd(ctx, stubborn, h.progress(stubborn, job))
	case "complete":
		return h.awaitEnd(ctx, stubborn, h.effect(stubborn, job, 0))
	}
	return dispatcher.Discard(errors.New("nobody knows the verb " + job.Args.Verb))
}

// awaitEnd returns err once ctx has ended.
func (h *handlers) awaitEnd(ctx, patience context.Context, err error) error {
	select {
	case <-ctx.Done():
	case <-patience.Done():
	}
	return err
}

// progress makes an intermediate write that only the owner of the lease may make.
func (h *handlers) progress(ctx context.Context, job *outbox.Job[Task]) error {
	err := inTx(ctx, h.pool, func(tx pgx.Tx) error {
		if err := job.Guard(ctx, tx); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `INSERT INTO effects (job_id, epoch, n, worker) VALUES ($1, $2, -1, $3)`, job.ID,
			job.Epoch, h.book.Name())
		return err
	})
	h.note(job, err)
	return err
}
