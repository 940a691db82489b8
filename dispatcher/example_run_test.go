package dispatcher_test

import (
	"context"
	"fmt"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
)

// How do I run a dispatcher without package app? Jobs start within milliseconds by a listener, and a reaper must run in
// at least one process.
func ExampleDispatcher_Run() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, end := pgtest.Example()
	defer end()

	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[payInvoice]) error {
		fmt.Println("paying invoice", job.Args.Number)
		stop() // in a program, SIGTERM does
		return nil
	})
	wake := listener.NewSignal()
	l, err := listener.New("", dispatcher.Channel, wake, listener.Config{Pool: pool, Canary: pool})
	if err != nil {
		panic(err)
	}
	d, err := dispatcher.New(pool, &mux, dispatcher.Config{Wake: wake, Listening: l.Listening})
	if err != nil {
		panic(err) // names each mistake in the configuration
	}
	if _, err := outbox.Enqueue(ctx, pool, payInvoice{7}, outbox.Options{}); err != nil {
		panic(err)
	}

	listening := make(chan error, 1)
	go func() { listening <- l.Run(ctx) }()
	err = d.Run(ctx) // after the stop, handlers that run have Config.GracePeriod
	stop()
	fmt.Println(err, <-listening)
	// Output:
	// paying invoice 7
	// <nil> <nil>
}
