package dispatcher_test

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Quote asks for the price of an order.
type Quote struct {
	outbox.Returns[Price]
	Items int
}

func (Quote) Kind() string { return "order.quote" }

type Price struct{ Cents int }

// How does a handler leave a result with its job? With package await, callers wait for it.
func ExampleHandleResult() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	var mux dispatcher.Mux
	dispatcher.HandleResult(&mux, func(_ context.Context, job *outbox.Job[Quote]) (Price, error) {
		return Price{Cents: 250 * job.Args.Items}, nil // anything but a Price would not compile
	})

	id, err := outbox.Enqueue(ctx, pool, Quote{Items: 3}, outbox.Options{})
	if err != nil {
		panic(err)
	}
	workOne(ctx, &mux, pool)
	job, err := operator.New(pool).Job(ctx, id)
	fmt.Println(job.Status, string(job.Result), err)
	// Output: succeeded {"Cents":750} <nil>
}

// How do I rename a kind of which jobs are still stored?
func ExampleMux_Alias() {
	ctx := context.Background()
	pool, end := pgtest.Example()
	defer end()
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[payInvoice]) error {
		fmt.Println("paying invoice", job.Args.Number, "for a job of kind", job.Kind)
		return nil
	})
	mux.Alias("invoice.pay", "invoice.settle") // until no job and no producer has the former name

	older := outbox.Raw{KindName: "invoice.settle", Payload: []byte(`{"Number": 7}`)}
	if _, err := outbox.Enqueue(ctx, pool, older, outbox.Options{}); err != nil {
		panic(err)
	}
	workOne(ctx, &mux, pool)
	// Output: paying invoice 7 for a job of kind invoice.settle
}
