package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type bank interface {
	Pay(ctx context.Context, idempotencyKey string, invoice int) error
}

// payments has what its handlers need: clients, pools, loggers.
type payments struct{ bank bank }

func (p *payments) pay(ctx context.Context, job *outbox.Job[payInvoice]) error {
	return p.bank.Pay(ctx, job.ID.String(), job.Args.Number)
}

// How does a handler get its dependencies?
func ExampleHandle() {
	register := func(mux *dispatcher.Mux, bank bank) {
		p := &payments{bank: bank}
		dispatcher.Handle(mux, p.pay, dispatcher.KindConfig{Timeout: time.Minute})
	}
	var mux dispatcher.Mux
	register(&mux, nil)
	fmt.Println(mux.Kinds())
	// Output: [invoice.pay]
}

var errRateLimited = errors.New("429: too many requests")

// How does a kind wait longer after some errors than after others?
func ExampleBackoffPolicy() {
	usual := dispatcher.Exponential(time.Second, 10*time.Minute)
	policy := func(job *outbox.Claimed, err error) time.Duration {
		if errors.Is(err, errRateLimited) {
			return time.Hour
		}
		return usual(job, err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[payInvoice]) error {
		return pay(ctx, job.Args.Number)
	}, dispatcher.KindConfig{Backoff: policy})
	fmt.Println(policy(&outbox.Claimed{Attempt: 1}, fmt.Errorf("pay: %w", errRateLimited)))
	// Output: 1h0m0s
}
