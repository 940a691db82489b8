package orders_test

import (
	"testing"

	orders "github.com/posthaste-dev/posthaste/examples/testing"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// snippet:begin

func TestAProducersRoleIsEnough(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pool)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		`GRANT INSERT, SELECT ON orders TO outbox_producer`, // until the end of the test
		`GRANT USAGE ON SEQUENCE orders_id_seq TO outbox_producer`,
		`SET LOCAL ROLE outbox_producer`,
		`SET LOCAL app.tenant_id = '00000000-0000-0000-0000-000000000001'`,
	} {
		if _, err := tx.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	id, err := orders.PlaceOrder(t.Context(), tx, "tea")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `RESET ROLE`); err != nil { // a producer reads no job
		t.Fatal(err)
	}
	outboxtest.RequireEnqueued(t, tx, orders.SendReceipt{OrderID: id}, outbox.Options{Queue: "mail"})
}

// snippet:end
