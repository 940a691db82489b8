package outbox_test

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// How does a handler complete its job at REPEATABLE READ, however long its transaction takes?
func ExampleClaimed_Guard() {
	var pool *pgxpool.Pool
	// given to dispatcher.Handle
	_ = func(ctx context.Context, job *outbox.Job[sendInvoice]) error {
		return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error {
			if err := job.Guard(ctx, tx); err != nil { // before any other statement
				return err
			}

			_, err := tx.Exec(ctx, `UPDATE invoices SET total = (SELECT sum(price) FROM lines WHERE order_id = $1) WHERE order_id = $1`, job.Args.OrderID)
			if err != nil {
				return err
			}

			return job.Complete(ctx, tx)
		})
	}
}
