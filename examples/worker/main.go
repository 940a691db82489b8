// Command worker sends the receipts that the producer asks for, until Ctrl-C.
package main

import (
	"context"
	"log"
	"log/slog"
	"os"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type SendReceipt struct{ OrderID int64 }

func (SendReceipt) Kind() string { return "receipt.send" }

// snippet:begin
func main() {
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[SendReceipt]) error {
		log.Printf("receipt for order %d", job.Args.OrderID)
		return nil // returning an error retries the job with exponential backoff
	})
	ctx, cut := app.Signals(context.Background()) // ctx ends at the first Ctrl-C or SIGTERM, cut at the second
	err := app.Run(ctx, &mux, app.Config{DatabaseURL: os.Getenv("DATABASE_URL"), Cut: cut, Logger: slog.Default()})
	if err != nil {
		log.Fatal(err)
	}
}

// snippet:end
