package outbox_test

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// PostEntry books an entry of an account.
type PostEntry struct{ Account string }

// Kind is what the handler is registered for.
func (PostEntry) Kind() string { return "ledger.post" }

// DefaultOptions have the entries of an account booked in order. One that cannot be
// is dealt with by a person within the hour, or the account is set aside.
func (e PostEntry) DefaultOptions() outbox.Options {
	return outbox.Options{
		Queue: "ledger", MaxAttempts: 10,
		Key: outbox.KeyRules{Name: e.Account, Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: time.Hour},
	}
}

// How do I say once, for a kind, how its jobs are run?
func ExampleDefaulter() {
	post := func(ctx context.Context, db outbox.DB, account string) error {
		_, err := outbox.Enqueue(ctx, db, PostEntry{account}, outbox.Options{Priority: 10}) // the rest is the kind's
		return err
	}
	_ = post
}
