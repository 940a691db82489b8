package outbox_test

import (
	"context"
	"log/slog"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// How do I run at most two synchronisations of a customer at once, across all my processes, and none twice when its
// worker dies?
func ExampleOptions_maxActive() {
	sync := func(ctx context.Context, db outbox.DB, origin string) error {
		_, err := outbox.Enqueue(ctx, db, SyncTickets{origin}, outbox.Options{
			Key: outbox.KeyRules{Name: origin, MaxActive: 2, OnLapse: outbox.FailStale},
		})
		return err
	}
	_ = sync
}

// How do I start a job at a given time, or a while from now?
func ExampleOptions_runAt() {
	remind := func(ctx context.Context, db outbox.DB, at time.Time) error {
		if _, err := outbox.Enqueue(ctx, db, SendCode{"+49 30 1234567"}, outbox.Options{RunAt: at}); err != nil {
			return err
		}
		// Delay is by the database's clock.
		_, err := outbox.Enqueue(ctx, db, SendCode{"+49 30 1234567"}, outbox.Options{Delay: time.Hour})
		return err
	}
	_ = remind
}

// How does a handler report what it found to the job's user, without failing?
func ExampleClaimed_Log() {
	// given to dispatcher.Handle
	_ = func(ctx context.Context, job *outbox.Job[SyncTickets]) error {
		for i, ticket := range []string{"T-1", ""} {
			if ticket == "" {
				if err := job.Log(ctx, slog.LevelWarn, "a ticket without a number was left out"); err != nil {
					return err // the handler is to stop
				}
				continue
			}
			if err := job.Progress(ctx, int64(i+1), 2, "importing "+ticket); err != nil {
				return err
			}
		}
		return nil
	}
}
