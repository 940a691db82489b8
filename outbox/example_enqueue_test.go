package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// openJobs counts the jobs that are not closed.
func openJobs(ctx context.Context, pool *pgxpool.Pool) (n int) {
	if err := pool.QueryRow(ctx, `SELECT count(*) FROM outbox.open_jobs`).Scan(&n); err != nil {
		panic(err)
	}
	return n
}

// What becomes of a job when the transaction that enqueued it is rolled back?
func ExampleEnqueue() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	errCardDeclined := errors.New("the card was declined")

	_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, SyncTickets{"acme"}, outbox.Options{})
		return errors.Join(err, errCardDeclined) // rolls back
	})
	fmt.Println("after a rollback:", openJobs(ctx, pool))

	err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, SyncTickets{"acme"}, outbox.Options{})
		return err
	})
	fmt.Println("after a commit:", openJobs(ctx, pool), err)
	// Output:
	// after a rollback: 0
	// after a commit: 1 <nil>
}

// How do I enqueue a thousand jobs with one statement?
func ExampleEnqueueMany() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	var requests []outbox.Request
	for i := range 1000 {
		request, err := outbox.Encode(SyncTickets{fmt.Sprint("customer ", i)}, outbox.Options{Priority: -1})
		if err != nil {
			panic(err)
		}
		requests = append(requests, request)
	}
	ids, err := outbox.EnqueueMany(ctx, pool, requests) // all or none
	fmt.Println(len(ids), openJobs(ctx, pool), err)
	// Output: 1000 1000 <nil>
}

// How do I enqueue in a transaction of database/sql, as sqlc, GORM, ent and bun have one?
func ExampleFromSQL() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()

	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := outbox.Enqueue(ctx, outbox.FromSQL(tx), SyncTickets{"acme"}, outbox.Options{}); err != nil {
		panic(err)
	}
	fmt.Println(tx.Commit(), openJobs(ctx, pool))
	// Output: <nil> 1
}

// How do many transactions at once enqueue without waiting for each other's NOTIFY?
func ExampleProducer() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	producer := outbox.NewProducer(pool, outbox.NotifyCoalesced)
	defer func() { // sends the last notification, before the pool is closed and although ctx has ended
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		_ = producer.Flush(ctx)
	}()

	err := producer.InTx(ctx, func(tx pgx.Tx) error { // commits, and notifies after the commit
		_, err := producer.Enqueue(ctx, tx, SyncTickets{"acme"}, outbox.Options{})
		return err
	})
	fmt.Println(openJobs(ctx, pool), err)
	// Output: 1 <nil>
}

// How is a request that is sent twice carried out once?
func ExampleOptions_idempotencyKey() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	first, err := outbox.Enqueue(ctx, pool, SyncTickets{"acme"}, outbox.Options{IdempotencyKey: "request-7"})
	if err != nil {
		panic(err)
	}
	again, err := outbox.Enqueue(ctx, pool, SyncTickets{"acme"}, outbox.Options{IdempotencyKey: "request-7"})
	fmt.Println(first == again, openJobs(ctx, pool), err)
	// Output: true 1 <nil>
}

// How is work done at most once an hour for each customer?
func ExampleOptions_oncePerHour() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	hour := time.Now().UTC().Format("2006-01-02T15")
	id, err := outbox.Enqueue(ctx, pool, SyncTickets{"acme"}, outbox.Options{IdempotencyKey: "acme/" + hour})
	if err != nil {
		panic(err)
	}
	fmt.Println(id.IsZero(), openJobs(ctx, pool))
	// Output: false 1
}
