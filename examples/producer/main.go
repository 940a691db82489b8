// Command producer stores an order and the job that sends its receipt: both or neither. Make the table of orders first:
//
//	psql "$DATABASE_URL" -c 'CREATE TABLE orders (id bigserial PRIMARY KEY, item text)'
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/posthaste-dev/posthaste/outbox"
)

// snippet:begin

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

func placeOrder(ctx context.Context, tx pgx.Tx, item string) error {
	var id int64
	if err := tx.QueryRow(ctx, `INSERT INTO orders (item) VALUES ($1) RETURNING id`, item).Scan(&id); err != nil {
		return err
	}
	_, err := outbox.Enqueue(ctx, tx, SendReceipt{OrderID: id}, outbox.Options{})
	return err
}

// snippet:end

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	producer := outbox.NewProducer(pool, outbox.NotifyCoalesced)
	err = producer.InTx(ctx, func(tx pgx.Tx) error { return placeOrder(ctx, tx, "tea") })
	if err != nil {
		log.Fatal(err)
	}
	if err := producer.Flush(ctx); err != nil { // the wake-up that follows the commit
		log.Print(err)
	}
}
