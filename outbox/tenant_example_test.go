package outbox_test

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/outbox"
)

type sendInvoice struct{ OrderID int64 }

func (sendInvoice) Kind() string { return "invoice.send" }

// How does a handler see the rows of its job's tenant only?
func ExampleClaimed_Tx() {
	// given to dispatcher.Handle
	_ = func(ctx context.Context, job *outbox.Job[sendInvoice]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error { // SET LOCAL app.tenant_id = job.Tenant
			_, err := tx.Exec(ctx, `UPDATE invoices SET sent_at = now() WHERE order_id = $1`, job.Args.OrderID)
			if err != nil {
				return err
			}
			return job.Complete(ctx, tx)
		})
	}
}
