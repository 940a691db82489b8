package orders_test

import (
	"testing"

	orders "github.com/posthaste-dev/posthaste/examples/testing"
	"github.com/posthaste-dev/posthaste/outbox"
)

// snippet:begin

func TestAReceiptGoesToTheMailer(t *testing.T) {
	t.Parallel()
	mail := &fakeMailer{sent: map[string]string{}}
	job := &outbox.Job[orders.SendReceipt]{
		Claimed: &outbox.Claimed{ID: outbox.NewID(), Attempt: 1, MaxAttempts: 25},
		Args:    orders.SendReceipt{OrderID: 7},
	}
	if err := (orders.Receipts{Mail: mail}).Send(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if mail.sent[job.ID.String()] != "thank you" {
		t.Errorf("sent %v", mail.sent)
	}
}

// snippet:end
