package orders_test

import (
	"testing"
	"time"

	orders "github.com/posthaste-dev/posthaste/examples/testing"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// snippet:begin

func TestAnOrderHasAReceiptAndAReminder(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pool)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id, err := orders.PlaceOrder(t.Context(), tx, "tea")
	if err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireEnqueued(t, tx, orders.SendReceipt{OrderID: id}, outbox.Options{Queue: "mail"})
	outboxtest.RequireEnqueued(t, tx, orders.RemindCustomer{OrderID: id}, outbox.Options{Delay: 48 * time.Hour})

	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	outboxtest.RequireNotEnqueued[orders.SendReceipt](t, db)
}

// snippet:end
