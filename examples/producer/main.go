// Command producer stores an order (CREATE TABLE orders (id bigserial PRIMARY KEY,
// item text)) and the job that sends its receipt: both or neither.
package main

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/posthaste-dev/posthaste/outbox"
)

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	producer := outbox.NewProducer(pool, outbox.NotifyCoalesced)
	err = producer.InTx(ctx, func(tx pgx.Tx) error {
		var job SendReceipt
		if err := tx.QueryRow(ctx, `INSERT INTO orders (item) VALUES ('tea') RETURNING id`).Scan(&job.OrderID); err != nil {
			return err
		}
		_, err := outbox.Enqueue(ctx, tx, job, outbox.Options{})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := producer.Flush(ctx); err != nil { // the wake-up that follows the commit
		log.Print(err)
	}
}
