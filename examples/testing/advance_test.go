package orders_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	orders "github.com/posthaste-dev/posthaste/examples/testing"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// snippet:begin

func TestACustomerIsRemindedAfterTwoDays(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pool)
	var id int64
	err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		id, err = orders.PlaceOrder(t.Context(), tx, "tea")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	worker := outboxtest.NewWorker(t, db, orders.Handlers(&fakeMailer{sent: map[string]string{}}), outboxtest.Config{})

	worker.Advance(47 * time.Hour)
	if n := reminders(t, db, id); n != 0 {
		t.Errorf("%d reminders on the second day", n)
	}
	worker.Advance(time.Hour)
	if n := reminders(t, db, id); n != 1 {
		t.Errorf("%d reminders after two days", n)
	}
}

func reminders(t *testing.T, db *outboxtest.DB, order int64) (n int) {
	if err := db.QueryRow(t.Context(), `SELECT reminders FROM orders WHERE id = $1`, order).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// snippet:end
