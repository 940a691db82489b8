package orders_test

import (
	"context"
	"maps"
	"slices"
	"testing"

	orders "github.com/posthaste-dev/posthaste/examples/testing"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// snippet:begin

func TestHandlersMayBeKilledAnywhere(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pool)
	if _, err := db.Exec(t.Context(), `INSERT INTO orders (id, item) VALUES (-7, 'tea')`); err != nil {
		t.Fatal(err)
	}
	mail := &fakeMailer{sent: map[string]string{}}
	worker := outboxtest.NewWorker(t, db, orders.Handlers(mail), outboxtest.Config{})

	outboxtest.CrashEverywhere(t, worker, orders.RemindCustomer{OrderID: -7}, outboxtest.Effects{Tables: []string{"orders"}})
	outboxtest.CrashEverywhere(t, worker, orders.SendReceipt{OrderID: -7}, outboxtest.Effects{
		State: func(context.Context, outbox.DB) (any, error) { return slices.Sorted(maps.Values(mail.sent)), nil },
		Reset: func() { clear(mail.sent) },
	})
}

// snippet:end
