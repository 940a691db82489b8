package outboxtest_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
	"github.com/posthaste-dev/posthaste/schedule"
)

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

type OrderPaid struct{ OrderID int64 }

func (OrderPaid) Topic() string { return "order.paid" }

// placeOrder stands for the work that a service does in its transaction.
func placeOrder(ctx context.Context, tx pgx.Tx) error {
	if _, err := tx.Exec(ctx, `INSERT INTO orders (id) VALUES (7)`); err != nil {
		return err
	}
	if _, err := outbox.Enqueue(ctx, tx, SendReceipt{OrderID: 7}, outbox.Options{Queue: "mail"}); err != nil {
		return err
	}
	_, err := outbox.Publish(ctx, tx, OrderPaid{OrderID: 7}, outbox.EventOptions{Key: "7"})
	return err
}

// How does a test get a database of its own, in a transaction that nobody else sees?
func ExampleNew() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return placeOrder(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
	var here, elsewhere int
	if err := errors.Join(
		db.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&here),
		pool.QueryRow(t.Context(), `SELECT count(*) FROM orders`).Scan(&elsewhere),
	); err != nil {
		t.Fatal(err)
	}
	fmt.Println(here, "in the test,", elsewhere, "elsewhere")
	// Output: 1 in the test, 0 elsewhere
}

// How does a test use a transaction that it begins and rolls back itself?
func ExampleWithin() {
	t, pool, end := example()
	defer end()

	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if err := placeOrder(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(context.Context, *outbox.Job[SendReceipt]) error { return nil })
	fmt.Println(outboxtest.NewWorker(t, outboxtest.Within(t, tx), &mux, outboxtest.Config{}).Work())
	// Output: receipt.send, attempt 1: succeeded
}

// Was the receipt enqueued, and in which queue?
func ExampleRequireEnqueued() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return placeOrder(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
	job := outboxtest.RequireEnqueued(t, db, SendReceipt{OrderID: 7}, outbox.Options{Queue: "mail"})
	fmt.Println(job.Status)
	// Output: pending
}

// What does a failing test print?
func ExampleRequireEnqueued_difference() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return placeOrder(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
	t.failing(func() {
		outboxtest.RequireEnqueued(t, db, SendReceipt{OrderID: 8}, outbox.Options{Queue: "mail", MaxAttempts: 3})
	})
	// Output:
	// no job of kind receipt.send is the wanted one (-want +enqueued):
	//   receipt.send, pending:
	//       {
	//     -   "OrderID": 8
	//     +   "OrderID": 7
	//       }
	//       Queue: mail
	//     - MaxAttempts: 3
	//     + MaxAttempts: 25
}

// Which receipts were enqueued?
func ExampleEnqueued() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	for id := range int64(3) {
		if _, err := outbox.Enqueue(t.Context(), db, SendReceipt{OrderID: id}, outbox.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, job := range outboxtest.Enqueued[SendReceipt](t, db) {
		fmt.Print(job.Args.OrderID, " ")
	}
	// Output: 0 1 2
}

// Is nothing enqueued for an order that was refused?
func ExampleRequireNotEnqueued() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
		return errors.Join(placeOrder(t.Context(), tx), errors.New("the card was refused"))
	})
	fmt.Println(err)
	outboxtest.RequireNotEnqueued[SendReceipt](t, db)
	outboxtest.RequireNotEnqueued(t, db, SendReceipt{OrderID: 7}) // this one
	// Output: the card was refused
}

// Was the event published, and with which key?
func ExampleRequirePublished() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error { return placeOrder(t.Context(), tx) }); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequirePublished(t, db, OrderPaid{OrderID: 7}, outbox.EventOptions{Key: "7"})
	outboxtest.RequireNotPublished(t, db, "order.cancelled")
	t.failing(func() { outboxtest.RequirePublished(t, db, OrderPaid{OrderID: 8}) })
	// Output:
	// no event of topic order.paid is the wanted one (-want +published):
	//   order.paid:
	//       {
	//     -   "OrderID": 8
	//     +   "OrderID": 7
	//       }
}

// What does the dispatcher make of a handler's errors?
func ExampleWorker_Work() {
	t, pool, end := example()
	defer end()

	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SendReceipt]) error {
		if job.Attempt == 1 {
			return dispatcher.RetryAfter(0, errors.New("connection refused"))
		}
		return dispatcher.Discard(fmt.Errorf("order %d has no address", job.Args.OrderID))
	})
	db := outboxtest.New(t, pool)
	if _, err := outbox.Enqueue(t.Context(), db, SendReceipt{OrderID: 7}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}
	worker := outboxtest.NewWorker(t, db, &mux, outboxtest.Config{})
	fmt.Println(worker.Work())
	fmt.Println(worker.Work())
	// Output:
	// receipt.send, attempt 1: retrying: connection refused
	// receipt.send, attempt 2: failed: order 7 has no address
}

// What happens until no work is left?
func ExampleWorker_Drain() {
	t, pool, end := example()
	defer end()

	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SendReceipt]) error {
		if job.Args.OrderID == 7 {
			_, err := job.Then(SendReceipt{OrderID: 8}, outbox.Options{})
			return err
		}
		return nil
	})
	db := outboxtest.New(t, pool)
	if _, err := outbox.Enqueue(t.Context(), db, SendReceipt{OrderID: 7}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, outcome := range outboxtest.NewWorker(t, db, &mux, outboxtest.Config{}).Drain() {
		fmt.Println(outcome)
	}
	// Output:
	// receipt.send, attempt 1: succeeded
	// receipt.send, attempt 1: succeeded
}

// What happens in the next two days?
func ExampleWorker_Advance() {
	t, pool, end := example()
	defer end()

	var worker *outboxtest.Worker
	began := time.Now()
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SendReceipt]) error {
		fmt.Println("order", job.Args.OrderID, "after", worker.Now().Sub(began).Round(time.Hour))
		if job.Attempt == 1 {
			return errors.New("connection refused")
		}
		return nil
	}, dispatcher.KindConfig{Backoff: dispatcher.Waits(6 * time.Hour)})
	db := outboxtest.New(t, pool)
	for id, delay := range []time.Duration{0, 24 * time.Hour, 72 * time.Hour} {
		if _, err := outbox.Enqueue(t.Context(), db, SendReceipt{OrderID: int64(id)}, outbox.Options{Delay: delay}); err != nil {
			t.Fatal(err)
		}
	}
	worker = outboxtest.NewWorker(t, db, &mux, outboxtest.Config{})
	worker.Advance(48 * time.Hour)
	// Output:
	// order 0 after 0s
	// order 0 after 6h0m0s
	// order 1 after 24h0m0s
	// order 1 after 30h0m0s
}

// When does a schedule fire, and for which day?
func ExampleWorker_Advance_schedule() {
	t, pool, end := example()
	defer end()

	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[SendReceipt]) error {
		tick, _ := schedule.TickOf(job.Claimed)
		fmt.Println(tick.Schedule, "at", tick.At.Format("15:04"))
		return nil
	})
	nightly := schedule.Cron("nightly", "0 3 * * *", "UTC", SendReceipt{}, schedule.Options{})
	worker := outboxtest.NewWorker(t, outboxtest.New(t, pool), &mux, outboxtest.Config{Schedules: []schedule.Schedule{nightly}})
	worker.Advance(48 * time.Hour)
	// Output:
	// nightly at 03:00
	// nightly at 03:00
}

// May the handler be killed anywhere? This one may not.
func ExampleCrashEverywhere() {
	t, pool, end := example()
	defer end()

	db := outboxtest.New(t, pool)
	if _, err := db.Exec(t.Context(), `INSERT INTO orders (id) VALUES (7)`); err != nil {
		t.Fatal(err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[SendReceipt]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `UPDATE orders SET reminders = reminders + 1 WHERE id = $1`, job.Args.OrderID)
			return err // and job.Complete(ctx, tx) is missing
		})
	})
	worker := outboxtest.NewWorker(t, db, &mux, outboxtest.Config{})
	outboxtest.CrashEverywhere(t, worker, SendReceipt{OrderID: 7}, outboxtest.Effects{Tables: []string{"orders"}})
	// Output:
	// a crash after COMMIT changes the effects (-without +with the crash):
	//       the job is succeeded
	//     - orders {"id": 7, "reminders": 1}
	//     + orders {"id": 7, "reminders": 2}
	// a crash before the handler's success is stored changes the effects (-without +with the crash):
	//       the job is succeeded
	//     - orders {"id": 7, "reminders": 1}
	//     + orders {"id": 7, "reminders": 2}
}
