package outbox_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// OrderPaid is an event: it names what has happened, in the past tense.
type OrderPaid struct {
	Order int `json:"order"`
	Cents int `json:"cents"`
}

// Topic returns "order.paid".
func (OrderPaid) Topic() string { return "order.paid" }

// How does a service publish what it has changed?
func ExamplePublish() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, "postgres:///shop")
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		// The change locks the order's row, which puts the order's events in order.
		if _, err := tx.Exec(ctx, `UPDATE orders SET paid = true WHERE id = $1`, 7); err != nil {
			return err
		}
		_, err := outbox.Publish(ctx, tx, OrderPaid{Order: 7, Cents: 1200}, outbox.EventOptions{Key: "order-7"})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("paid")
}
