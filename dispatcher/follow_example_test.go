package dispatcher_test

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// PlaceOrder is carried out, and then followed by SendReceipt.
type PlaceOrder struct{ OrderID int64 }

func (PlaceOrder) Kind() string { return "order.place" }

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

// How does one job start the next exactly when it has succeeded, and how do I learn that it failed for good?
func Example_followUps() {
	pool, end := pgtest.Example()
	defer end()
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[PlaceOrder]) error {
		fmt.Println("placing order", job.Args.OrderID)
		_, err := job.Then(SendReceipt{job.Args.OrderID}, outbox.Options{}) // stored with our success, or not at all
		return err
	})
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SendReceipt]) error {
		return dispatcher.Discard(fmt.Errorf("order %d has no address", job.Args.OrderID))
	})
	heard := make(chan struct{})
	dispatcher.OnDeath(&mux, func(_ context.Context, job *outbox.Job[dispatcher.Ended[SendReceipt]]) error {
		fmt.Printf("receipt of order %d is %s: %s\n", job.Args.Args.OrderID, job.Args.Status, job.Args.ErrorMessage)
		close(heard)
		return nil
	})
	defer workUntil(&mux, pool, heard)()

	if _, err := outbox.Enqueue(context.Background(), pool, PlaceOrder{7}, outbox.Options{}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// placing order 7
	// receipt of order 7 is failed: order 7 has no address
}
