package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

// SendReceipt asks for an order's receipt to be sent.
type SendReceipt struct{ OrderID int64 }

// Kind names the job.
func (SendReceipt) Kind() string { return "receipt.send" }

// ReserveStock asks for an order's goods to be put aside.
type ReserveStock struct {
	OrderID  int64
	SKU      string
	Quantity int
}

// Kind names the job.
func (ReserveStock) Kind() string { return "stock.reserve" }

// placeOrder stores an order and its two jobs in one transaction: all three are
// there, or none. The producer commits and then wakes the workers.
func placeOrder(ctx context.Context, db outbox.Beginner, customer, sku string, quantity int) error {
	return pgx.BeginFunc(ctx, db, func(tx pgx.Tx) error {
		var id int64
		err := tx.QueryRow(ctx, `INSERT INTO orders (customer, sku, quantity) VALUES ($1, $2, $3) RETURNING id`,
			customer, sku, quantity).Scan(&id)
		if err != nil {
			return err
		}
		if _, err := outbox.Enqueue(ctx, tx, SendReceipt{OrderID: id}, outbox.Options{}); err != nil {
			return err
		}
		_, err = outbox.Enqueue(ctx, tx, ReserveStock{OrderID: id, SKU: sku, Quantity: quantity}, outbox.Options{})
		return err
	})
}

// tills is how many customers are served at a time.
const tills = 4

// customers come to the shop and count what they ordered.
type customers struct {
	producer *outbox.Producer
	placed   atomic.Int64
}

// come has n orders placed, one every so often, and returns when the last one is
// committed.
func (c *customers) come(ctx context.Context, n int, every time.Duration) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	queue := make(chan struct{})
	var open sync.WaitGroup
	for range tills {
		open.Go(func() {
			for range queue {
				if err := c.order(ctx); err != nil {
					fail(fmt.Errorf("place an order: %w", err))
				}
			}
		})
	}
	clock := time.NewTicker(every)
	defer clock.Stop()
	for i := 0; i < n && ctx.Err() == nil; i++ {
		select {
		case <-ctx.Done():
		case <-clock.C:
			queue <- struct{}{}
		}
	}
	close(queue)
	open.Wait()
	_ = c.producer.Flush(ctx) // the wake-up for the last order; the poll covers a lost one
	return context.Cause(ctx)
}

func (c *customers) order(ctx context.Context) error {
	names := []string{"Ada", "Grace", "Edsger", "Barbara", "Donald", "Frances"}
	goods := []string{
		"tea", "coffee", "cocoa", "sugar", "honey", "bread", "butter", "jam", "salt", "pepper", "rice",
		"beans",
	}
	err := placeOrder(ctx, c.producer, names[rand.IntN(len(names))], goods[rand.IntN(len(goods))], 1+rand.IntN(3))
	if err == nil {
		c.placed.Add(1)
	}
	return err
}
