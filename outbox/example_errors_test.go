package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// How do I find out which part of a request is not acceptable?
func ExampleInvalidError() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	_, err := outbox.Enqueue(ctx, pool, SyncTickets{"acme"}, outbox.Options{Priority: 40_000})
	if invalid, ok := errors.AsType[*outbox.InvalidError](err); ok {
		fmt.Println("field: ", invalid.Field)
		fmt.Println("reason:", invalid.Reason)
	}
	// Output:
	// field:  Options.Priority
	// reason: is 40000, want -32768 to 32767
}

// How do I find out which of many requests is not acceptable?
func ExampleRequestError() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	_, err := outbox.EnqueueMany(ctx, pool, []outbox.Request{
		{Args: SyncTickets{"acme"}},
		{Args: SyncTickets{"initech"}, Options: outbox.Options{Queue: "no such queue"}},
	})
	if request, ok := errors.AsType[*outbox.RequestError](err); ok {
		fmt.Println("request", request.Index, "and stored:", openJobs(ctx, pool))
	}
	// Output: request 1 and stored: 0
}

// How do I tell a caller that too many jobs of a key wait already?
func ExampleQueueFullError() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	for range 2 {
		_, err := outbox.Enqueue(ctx, pool, SyncTickets{"acme"}, outbox.Options{
			Key: outbox.KeyRules{Name: "acme", MaxQueued: 1},
		})
		if full, ok := errors.AsType[*outbox.QueueFullError](err); ok {
			fmt.Printf("%d of %d wait: try again later\n", full.Queued, full.MaxQueued) // an API answers 429
		}
	}
	// Output: 1 of 1 wait: try again later
}
