// Command quickstart enqueues a job and handles it.
package main

import (
	"context"
	"fmt"
	"log"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

type Greet struct{ Name string }

func (Greet) Kind() string { return "greet" }

func main() {
	ctx, cut := app.Signals(context.Background()) // ctx ends at the first Ctrl-C or SIGTERM, cut at the second
	url := os.Getenv("DATABASE_URL")
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { // your own change goes here, in the same transaction
		_, err := outbox.Enqueue(ctx, tx, Greet{Name: "Ada"}, outbox.Options{})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(ctx context.Context, job *outbox.Job[Greet]) error {
		fmt.Printf("hello, %s\n", job.Args.Name)
		return nil // returning an error retries the job
	})
	if err := app.Run(ctx, &mux, app.Config{DatabaseURL: url, Cut: cut, Logger: slog.Default()}); err != nil {
		log.Fatal(err)
	}
}
