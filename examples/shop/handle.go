package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// shop carries out the jobs. A job may come again, after a crash for example, so
// each handler is written such that the second time does no harm. The two show
// the two ways to do it.
type shop struct {
	db *pgxpool.Pool
}

// sendReceipt looks at the order, under lock, before it acts: the order itself
// knows whether its receipt was sent. Were the same job running elsewhere too,
// one of them would wait here and then see what the other did.
//
// The receipt is a row here. A mail server would be given job.ID as the message
// id, because a crash after sending and before the commit sends again.
func (s *shop) sendReceipt(ctx context.Context, job *outbox.Job[SendReceipt]) error {
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		var sent bool
		// NO KEY lets the order's reservation, which refers to it, be written meanwhile.
		err := tx.QueryRow(ctx, `SELECT receipt_sent_at IS NOT NULL FROM orders WHERE id = $1 FOR NO KEY UPDATE`,
			job.Args.OrderID).Scan(&sent)
		if err != nil || sent {
			return err
		}
		if err := mail(ctx, job.Args.OrderID, job.Attempt); err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO receipts (order_id, sent_by) VALUES ($1, $2)`, job.Args.OrderID, job.Worker)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `UPDATE orders SET receipt_sent_at = now() WHERE id = $1`, job.Args.OrderID)
		return err
	})
}

// reserveStock finishes the job in the same transaction as its effect: either
// both are committed or neither, so that a job which comes again has done nothing
// yet. It works wherever the effect is in the outbox's database.
func (s *shop) reserveStock(ctx context.Context, job *outbox.Job[ReserveStock]) error {
	if err := pause(ctx, rand.N(10*time.Millisecond)); err != nil { // somebody fetches it
		return err
	}
	order := job.Args
	return pgx.BeginFunc(ctx, s.db, func(tx pgx.Tx) error {
		taken, err := tx.Exec(ctx, `UPDATE stock SET available = available - $2 WHERE sku = $1 AND available >= $2`,
			order.SKU, order.Quantity)
		if err != nil {
			return err
		}
		if taken.RowsAffected() == 0 {
			return dispatcher.Discard(fmt.Errorf("out of %s", order.SKU)) // trying again would not help
		}
		_, err = tx.Exec(ctx,
			`INSERT INTO stock_reservations (order_id, sku, quantity, reserved_by) VALUES ($1, $2, $3, $4)`,
			order.OrderID, order.SKU, order.Quantity, job.Worker)
		if err != nil {
			return err
		}
		return job.Complete(ctx, tx)
	})
}

var errBusy = errors.New("mail server: 421 too busy, try again later")

// mail takes as long as mailing does, now and then a second, and is refused at
// times: the job is then tried again.
func mail(ctx context.Context, orderID int64, attempt int) error {
	takes := 20*time.Millisecond + rand.N(40*time.Millisecond)
	if orderID%12 == 0 {
		takes = time.Second
	}
	if err := pause(ctx, takes); err != nil {
		return err
	}
	if orderID%40 == 1 && attempt == 1 {
		return errBusy
	}
	return nil
}

// pause waits, unless the job is to stop: context.Cause says why.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
