package orders_test

import (
	"context"
	"errors"
	"testing"
	"time"

	orders "github.com/posthaste-dev/posthaste/examples/testing"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// snippet:begin

// fakeMailer does not send a mail again that it was given before, and fails while it is down.
type fakeMailer struct {
	down bool
	sent map[string]string
}

func (m *fakeMailer) Send(_ context.Context, key string, _ int64, text string) error {
	if m.down {
		return errors.New("connection refused")
	}
	m.sent[key] = text
	return nil
}

func TestAReceiptIsSentOnceTheMailerIsBack(t *testing.T) {
	t.Parallel()
	db := outboxtest.New(t, pool)
	mail := &fakeMailer{down: true, sent: map[string]string{}}
	worker := outboxtest.NewWorker(t, db, orders.Handlers(mail), outboxtest.Config{})
	if _, err := outbox.Enqueue(t.Context(), db, orders.SendReceipt{OrderID: 7}, outbox.Options{}); err != nil {
		t.Fatal(err)
	}

	if first := worker.Work(); first.Status != outbox.Retrying {
		t.Errorf("with the mailer down: %s", first)
	}
	mail.down = false
	for _, outcome := range worker.Advance(time.Minute) {
		if outcome.Attempt != 2 || outcome.Status != outbox.Succeeded {
			t.Errorf("a minute later: %s", outcome)
		}
	}
	if len(mail.sent) != 1 {
		t.Errorf("%d mails were sent", len(mail.sent))
	}
}

// snippet:end
