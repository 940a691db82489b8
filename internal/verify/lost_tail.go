package verify

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/natsproc"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

const storeRolledBack = "NATS store rolled back"

// lostTail runs row E5: a replay publishes again what the broker has acknowledged and lost.
func lostTail(ctx context.Context, r *Run) (err error) {
	lost := r.Size(5_000, 50_000)
	broker, err := r.broker(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, broker.Kill9()) }()
	p := &publishing{clients: 4, keys: 100, rest: 10 * time.Millisecond}
	if err := r.prepareEvents(ctx, p.keys); err != nil {
		return err
	}
	relay, err := r.relay("relay", "VERIFY_SINKS=s=nats", "VERIFY_BROKER="+broker.URL, "OUTBOX_LEASE_TTL=1s")
	if err != nil {
		return err
	}
	since := time.Now().Add(-time.Minute)
	if err := r.store(ctx, lost, "kept"); err != nil {
		return err
	}
	rollBack, err := r.copyStore(ctx, broker)
	if err != nil {
		return err
	}
	if err := r.publish(ctx, p); err != nil {
		return err
	}
	if err := errors.Join(r.store(ctx, lost, "lost"), backoff.Sleep(ctx, 3*time.Second), p.stop()); err != nil {
		return err
	}
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return err
	}
	if err := r.loseTail(ctx, broker.URL, rollBack, lost+1); err != nil {
		return err
	}
	if err := r.replay(ctx, since); err != nil {
		return err
	}
	if err := r.stop(ctx, relay); err != nil {
		return err
	}
	got, err := stored(ctx, broker.URL, eventStream)
	if err != nil {
		return err
	}
	repeats, err := r.checkPublished(ctx, p.acked, got, nothing)
	if err != nil {
		return err
	}
	r.Expect("messages that the broker stored twice", float64(repeats), "=", 0)
	r.atLeast(1, storeRolledBack)
	return nil
}

// loseTail rolls the broker's store back, and checks that this lost at least the given number of messages.
func (r *Run) loseTail(ctx context.Context, url string, rollBack func() error, atLeast int) error {
	before, err := stored(ctx, url, eventStream)
	if err != nil {
		return err
	}
	if err := rollBack(); err != nil {
		return err
	}
	after, err := stored(ctx, url, eventStream)
	if err != nil {
		return err
	}
	r.Figure("messages_lost", float64(len(before)-len(after)))
	r.Expect("acknowledged messages that the rollback lost", float64(len(before)-len(after)), ">=", float64(atLeast))
	return nil
}

// copyStore waits until everything is published and copies the broker's store. The function that it returns kills the
// broker, restores the copy, and starts the broker again.
func (r *Run) copyStore(ctx context.Context, broker *natsproc.Server) (rollBack func() error, err error) {
	store, kept := filepath.Join(r.Dir, "nats", "store"), filepath.Join(r.Dir, "nats", "kept")
	if err := r.awaitPublished(ctx, "s", patience); err != nil {
		return nil, err
	}
	err = broker.Kill9() // so that nothing writes to the files
	if err = errors.Join(err, os.CopyFS(kept, os.DirFS(store)), broker.Restart()); err != nil {
		return nil, err
	}
	return func() error {
		healed := r.Faults.Begin(storeRolledBack, "")
		defer healed()
		return errors.Join(broker.Kill9(), os.RemoveAll(store), os.CopyFS(store, os.DirFS(kept)), broker.Restart())
	}, nil
}

// replay makes the sink publish again what was stored since a time, and waits until it has.
func (r *Run) replay(ctx context.Context, since time.Time) error {
	o := operator.New(r.DB)
	started, err := o.ReplayEvents(ctx, "s", operator.EventReplay{EventFilter: operator.EventFilter{Since: since}})
	if err != nil {
		return err
	}
	err = r.Await(ctx, patience, "the replay to end", func(ctx context.Context) (ended bool, err error) {
		started, err = o.Replay(ctx, "s", outbox.ID{}, started.ID)
		return !started.EndedAt.IsZero(), err
	})
	r.Figure("replayed", float64(started.Published))
	return err
}
