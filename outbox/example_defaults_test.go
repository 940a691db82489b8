package outbox_test

import (
	"context"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// PostEntry books an entry of an account.
type PostEntry struct{ Account string }

// Kind names the kind that the handler is registered for.
func (PostEntry) Kind() string { return "ledger.post" }

// DefaultOptions makes the entries of an account run in order. If one fails for good, a person deals with it within the
// hour, or the account is parked.
func (e PostEntry) DefaultOptions() outbox.Options {
	return outbox.Options{
		Queue: "ledger", MaxAttempts: 10,
		Key: outbox.KeyRules{Name: e.Account, Ordered: true, OnDeath: outbox.ParkKey, ParkAfter: time.Hour},
	}
}

// How do I set the options of all jobs of a kind in one place?
func ExampleDefaulter() {
	post := func(ctx context.Context, db outbox.DB, account string) error {
		_, err := outbox.Enqueue(ctx, db, PostEntry{account}, outbox.Options{Priority: 10}) // the rest is the kind's
		return err
	}
	_ = post
}
