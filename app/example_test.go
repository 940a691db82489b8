package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

func sendReceipt(_ context.Context, job *outbox.Job[SendReceipt]) error {
	fmt.Println("sending the receipt of order", job.Args.OrderID)
	return nil
}

// This is a whole program with a handler of its own.
func Example() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, sendReceipt)

	ctx, cut := app.Signals(context.Background())
	err := app.Run(ctx, &mux, app.Config{
		DatabaseURL: os.Getenv("DATABASE_URL"),
		AdminAddr:   "127.0.0.1:9090",
		Logger:      slog.New(slog.NewJSONHandler(os.Stderr, nil)),
		Cut:         cut,
	})
	if err != nil {
		slog.Error("stopped", "err", err)
		os.Exit(1)
	}
}

// How does Kubernetes reach the probes?
func Example_probes() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, sendReceipt)

	ctx, cut := app.Signals(context.Background())
	err := app.Run(ctx, &mux, app.Config{
		DatabaseURL: os.Getenv("DATABASE_URL"),
		Cut:         cut,
		AdminAddr:   ":9090",
		NoPprof:     true,
	})
	if err != nil {
		fmt.Println(err)
	}
}

// How do I work another queue?
func Example_queues() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, sendReceipt)

	ctx, cut := app.Signals(context.Background())
	err := app.Run(ctx, &mux, app.Config{
		DatabaseURL: os.Getenv("DATABASE_URL"),
		Cut:         cut,
		Queues:      map[string]dispatcher.QueueConfig{"default": {}, "mail": {Concurrency: 8}},
	})
	if err != nil {
		fmt.Println(err)
	}
}
