package dispatcher_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// PlaceOrder is carried out, and then followed by SendReceipt.
type PlaceOrder struct{ OrderID int64 }

func (PlaceOrder) Kind() string { return "order.place" }

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

// How does one job start the next exactly when it has succeeded, and who is told when that fails for good?
func Example_followUps() {
	pool, end := exampleDB()
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
	told := make(chan struct{})
	dispatcher.OnDeath(&mux, func(_ context.Context, job *outbox.Job[outbox.Ended[SendReceipt]]) error {
		fmt.Printf("receipt of order %d is %s: %s\n", job.Args.Args.OrderID, job.Args.Status, job.Args.ErrorMessage)
		close(told)
		return nil
	})
	defer workUntil(&mux, pool, told)()

	if _, err := outbox.Enqueue(context.Background(), pool, PlaceOrder{7}, outbox.Options{}); err != nil {
		fmt.Println(err)
	}
	// Output:
	// placing order 7
	// receipt of order 7 is failed: order 7 has no address
}

// workUntil runs a dispatcher until the function that it returns is called and told is closed.
func workUntil(mux *dispatcher.Mux, pool *pgxpool.Pool, told <-chan struct{}) (end func()) {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	d, err := dispatcher.New(pool, mux, dispatcher.Config{DeafPollInterval: 20 * time.Millisecond})
	if err != nil {
		panic(err)
	}
	go func() { ended <- d.Run(ctx) }()
	return func() {
		<-told
		stop()
		if err := <-ended; err != nil {
			fmt.Println(err)
		}
	}
}

// exampleTB lets pgtest serve an example, which has no *testing.T.
type exampleTB struct {
	testing.TB
	cleanups []func()
	failed   bool
}

func exampleDB() (db *pgxpool.Pool, end func()) {
	tb := new(exampleTB)
	return pgtest.New(tb), func() {
		for _, f := range slices.Backward(tb.cleanups) {
			f()
		}
	}
}

func (tb *exampleTB) Helper()                         {}
func (tb *exampleTB) Name() string                    { return "Example" }
func (tb *exampleTB) Cleanup(f func())                { tb.cleanups = append(tb.cleanups, f) }
func (tb *exampleTB) Failed() bool                    { return tb.failed }
func (tb *exampleTB) Fatal(args ...any)               { panic(fmt.Sprint(args...)) }
func (tb *exampleTB) Fatalf(format string, a ...any)  { panic(fmt.Sprintf(format, a...)) }
func (tb *exampleTB) Logf(format string, args ...any) { fmt.Printf(format+"\n", args...) }
func (tb *exampleTB) Errorf(format string, args ...any) {
	tb.failed = true
	tb.Logf(format, args...) // and so the output differs
}
