package dispatcher_test

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func ready(int) (bool, error) { return true, nil }

// How does a kind get its own timeout and retries, and how does a handler postpone its job without spending an attempt?
func ExampleSnooze() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[Export]) error {
		ok, err := ready(job.Args.Pages)
		if err == nil && !ok {
			return dispatcher.Snooze(10 * time.Minute) // not yet: no failure
		}
		return err
	}, dispatcher.KindConfig{
		Timeout: time.Minute, // then its context ends with dispatcher.ErrTimeout: job_timeout
		Backoff: dispatcher.Waits(time.Second, time.Minute, time.Hour),
	})
	fmt.Println(mux.Kinds())
	// Output: [export]
}

// How do I run code at least once after a job has succeeded, whatever crashes?
func ExampleOnSuccess() {
	pool, end := pgtest.Example()
	defer end()
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(context.Context, *outbox.Job[PlaceOrder]) error { return nil })
	heard := make(chan struct{})
	dispatcher.OnSuccess(&mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[PlaceOrder]]) error {
		fmt.Printf("order %d: %s, attempt %d\n", job.Args.Args.OrderID, job.Args.Status, job.Args.Attempt)
		close(heard)
		return nil
	})
	defer workUntil(&mux, pool, heard)()

	if _, err := outbox.Enqueue(context.Background(), pool, PlaceOrder{7}, outbox.Options{}); err != nil {
		fmt.Println(err)
	}
	// Output: order 7: succeeded, attempt 1
}
