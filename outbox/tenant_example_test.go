package outbox_test

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
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

// How does a request enqueue for its tenant, in a transaction that your tables' policies restrict to that tenant?
func ExampleInTenant() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	acme := outbox.NewID()

	err := outbox.InTenant(ctx, pool, acme, func(tx pgx.Tx) error {
		var bound string // what policies of your tables compare with
		if err := tx.QueryRow(ctx, `SELECT current_setting('app.tenant_id')`).Scan(&bound); err != nil {
			return err
		}
		fmt.Println(bound == acme.String())
		_, err := outbox.Enqueue(ctx, tx, sendInvoice{7}, outbox.Options{Tenant: acme})
		return err
	})
	fmt.Println(openJobs(ctx, pool), err)
	// Output:
	// true
	// 1 <nil>
}
