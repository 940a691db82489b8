// Package orders is a service with a few lines of each kind that docs/guides/testing.md tests: code that enqueues in
// the caller's transaction, and handlers.
package orders

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// snippet:begin

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

type RemindCustomer struct{ OrderID int64 }

func (RemindCustomer) Kind() string { return "customer.remind" }

func PlaceOrder(ctx context.Context, tx pgx.Tx, item string) (id int64, err error) {
	if err := tx.QueryRow(ctx, `INSERT INTO orders (item) VALUES ($1) RETURNING id`, item).Scan(&id); err != nil {
		return 0, err
	}
	if _, err := outbox.Enqueue(ctx, tx, SendReceipt{id}, outbox.Options{Queue: "mail"}); err != nil {
		return 0, err
	}
	_, err = outbox.Enqueue(ctx, tx, RemindCustomer{id}, outbox.Options{Queue: "mail", Delay: 48 * time.Hour})
	return id, err
}

type Mailer interface {
	Send(ctx context.Context, idempotencyKey string, orderID int64, text string) error
}

// Receipts handles SendReceipt.
type Receipts struct{ Mail Mailer }

func (r Receipts) Send(ctx context.Context, job *outbox.Job[SendReceipt]) error {
	return r.Mail.Send(ctx, job.ID.String(), job.Args.OrderID, "thank you")
}

func Handlers(mail Mailer) *dispatcher.Mux {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, Receipts{mail}.Send)
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[RemindCustomer]) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `UPDATE orders SET reminders = reminders + 1 WHERE id = $1`,
				job.Args.OrderID); err != nil {
				return err
			}
			return job.Complete(ctx, tx)
		})
	})
	return &mux
}

// snippet:end
