package outbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

type SyncTickets struct{ Origin string }

func (SyncTickets) Kind() string { return "tickets.sync" }

// How do I run one synchronisation of each customer at a time, and keep at most one waiting behind it?
func ExampleSubmit() {
	request := func(ctx context.Context, tx pgx.Tx, origin string) error {
		done, err := outbox.Submit(ctx, tx, SyncTickets{origin}, outbox.Options{
			Key: outbox.KeyRules{Name: origin, MaxQueued: 1, WhenFull: outbox.CoalesceFull},
		})
		if err != nil {
			return err
		}
		fmt.Println(done.Stored, done.ID) // false and the id of the waiting job, if that stands for this request
		return nil
	}
	_ = request
}

// How do I carry out the changes of each order in the order in which they were committed, and park an order when one of
// its changes fails for good?
func ExampleOptions_ordered() {
	change := func(ctx context.Context, tx pgx.Tx, order int64, args outbox.Args) error {
		_, err := outbox.Enqueue(ctx, tx, args, outbox.Options{
			Key: outbox.KeyRules{Name: fmt.Sprint("order ", order), Ordered: true, OnDeath: outbox.ParkKey},
		})
		return err
	}
	_ = change
}
