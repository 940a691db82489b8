// With this, recover returns nil for panic(nil): programs older than Go 1.21 may ask for it.
//
//go:debug panicnil=1
package dispatcher_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// While the handler's own transaction holds the row, nobody can take the job: cutting the handler off would run it
// again and again, without ever spending an attempt.
func TestATransactionThatGuardsTheJobMayOutliveTheLease(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	runs := make(chan struct{}, 10)
	mux := handle(func(ctx context.Context, job *outbox.Job[probe]) error {
		runs <- struct{}{}
		tx, err := db.Begin(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
		if err := job.Guard(ctx, tx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Second): // two leases
		}
		if err := job.Complete(ctx, tx); err != nil {
			return err
		}
		return tx.Commit(ctx)
	})
	config := quiet(nil)
	config.LeaseTTL = 5 * time.Second
	id := enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, mux, config)
	awaitSucceeded(t, db, 1)
	if len(runs) != 1 {
		t.Errorf("the handler ran %d times, want once", len(runs))
	}
	if got := ask[int](t, db, `SELECT attempt FROM outbox.history WHERE id = $1`, id); got != 1 {
		t.Errorf("attempt = %d, want 1", got)
	}
}

// A result that is too large would be refused with every batch that it is in.
func TestAResultThatIsTooLargeFailsForGood(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	mux := new(dispatcher.Mux)
	dispatcher.HandleResult(mux, func(context.Context, *outbox.Job[returning[string]]) (string, error) {
		return strings.Repeat("x", engine.MaxPayloadBytes), nil
	})
	id := enqueue(t, db, probe{}, outbox.Options{})
	start(t, db, mux, quiet(nil))
	await(t, db, "the attempt is settled", `SELECT count(*) = 1 FROM outbox.jobs WHERE status = 'failed'`)
	wantState(t, db, id, "failed attempt=1 epoch=2 lost=0 error=result_too_large")
}
