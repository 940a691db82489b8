package probe

import (
	"context"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Orders is a producer in the process of the harness, for callers that must place orders at the same moment.
type Orders struct{ p *producer }

// NewOrders returns Orders that keep the ledger book. The orders have idempotency keys, and their jobs make an effect.
func NewOrders(book *ledger.Writer, o *outbox.Producer) *Orders {
	return &Orders{&producer{book: book, outbox: o, plan: plan{insist: true, mix: []string{"effect"}}}}
}

// Insist places order n, again and again until it is acknowledged, and returns its job. Calls may be concurrent, also
// for the same order.
func (o *Orders) Insist(ctx context.Context, n int, patience time.Duration) (outbox.ID, error) {
	key := []string{fmt.Sprintf("%s-%d", o.p.book.Name(), n)}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if ids := o.p.place(ctx, n, key); ids != nil {
			return ids[0], nil
		}
		if err := backoff.Sleep(ctx, 20*time.Millisecond); err != nil {
			return outbox.ID{}, err
		}
	}
	return outbox.ID{}, fmt.Errorf("order %s was not acknowledged in %s", key[0], patience)
}
