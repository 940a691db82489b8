// Command sqlproducer is the producer with database/sql. Make the table of orders first:
//
//	psql "$DATABASE_URL" -c 'CREATE TABLE orders (id bigserial PRIMARY KEY, item text)'
package main

import (
	"context"
	"database/sql"
	"log"
	"os"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/posthaste-dev/posthaste/outbox"
)

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

func main() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	if err := placeOrder(context.Background(), db); err != nil {
		log.Fatal(err)
	}
}

// snippet:begin

func placeOrder(ctx context.Context, db *sql.DB) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() // does nothing after a commit
	var id int64
	if err := tx.QueryRowContext(ctx, `INSERT INTO orders (item) VALUES ('tea') RETURNING id`).Scan(&id); err != nil {
		return err
	}
	if _, err := outbox.Enqueue(ctx, outbox.FromSQL(tx), SendReceipt{OrderID: id}, outbox.Options{}); err != nil {
		return err
	}
	return tx.Commit() // which also wakes the dispatchers
}

// snippet:end
