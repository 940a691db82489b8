package dispatcher_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

// How does a handler give up at once, without more attempts?
func ExampleDiscard() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[payInvoice]) error {
		if job.Args.Number <= 0 {
			// failed, for a person to see
			return dispatcher.Discard(fmt.Errorf("no invoice has the number %d", job.Args.Number))
		}
		return nil
	})
	fmt.Println(mux.Kinds())
	// Output: [invoice.pay]
}

// How does a handler wait as long as the other side has asked for?
func ExampleRetryAfter() {
	attempts := 0
	work(payInvoice{Number: 7}, func(context.Context, *outbox.Job[payInvoice]) error {
		if attempts++; attempts == 1 {
			// spends an attempt
			return dispatcher.RetryAfter(50*time.Millisecond, errors.New("429: try again in 50 ms"))
		}
		return nil
	})
	fmt.Println(attempts, "attempts")
	// Output: 2 attempts
}

// How do I do something around every handler, such as a span or a log line?
func ExampleMux_Use() {
	var mux dispatcher.Mux
	mux.Use(func(next dispatcher.Handler) dispatcher.Handler {
		return func(ctx context.Context, job *outbox.Claimed) error {
			began := time.Now()
			err := next(ctx, job)
			fmt.Println(job.Kind, time.Since(began), err)
			return err
		}
	})
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[payInvoice]) error {
		return pay(ctx, job.Args.Number)
	})
}

// How do I change the waits between the attempts of a kind?
func ExampleKindConfig() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[payInvoice]) error {
		return pay(ctx, job.Args.Number)
	}, dispatcher.KindConfig{
		Timeout: time.Minute,                                                // of one attempt
		Backoff: dispatcher.Waits(time.Second, time.Minute, 15*time.Minute), // and then always the last
	})
	fmt.Println(mux.Kinds())
	// Output: [invoice.pay]
}
