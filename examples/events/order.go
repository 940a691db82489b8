package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// snippet:begin

const shopTables = `
	CREATE TABLE orders (id bigserial PRIMARY KEY, customer text NOT NULL, cents int NOT NULL, paid bool NOT NULL DEFAULT false)`

// OrderPaid is the event that somebody has paid an order.
type OrderPaid struct {
	Order    int64  `json:"order"`
	Customer string `json:"customer"`
	Cents    int    `json:"cents"`
}

// Topic names what has happened.
func (OrderPaid) Topic() string { return "order.paid" }

// pay marks an order as paid and publishes that it is, in one transaction: both are there, or neither.
func pay(ctx context.Context, db outbox.Beginner, order int64) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		event := OrderPaid{Order: order}
		// The row's lock is what makes the events of an order come in their order: first the lock, then the event.
		err := tx.QueryRow(ctx, `UPDATE orders SET paid = true WHERE id = $1 RETURNING customer, cents`, order).Scan(
			&event.Customer, &event.Cents)
		if err != nil {
			return err
		}
		_, err = outbox.Publish(ctx, tx, event, outbox.EventOptions{Key: fmt.Sprint("order-", order)})
		return err
	})
}

// snippet:end
