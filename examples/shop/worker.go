package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
)

// concurrency is how many jobs one worker runs at a time, each with a connection.
const concurrency = 16

// runWorker runs a whole worker process: a mux with the handlers, and app.Run. It ends with SIGTERM or Ctrl-C, after
// the jobs that are running.
func runWorker(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("shop worker", flag.ContinueOnError)
	name := flags.String("name", "", "who holds the leases, for people (default host-pid and 8 hex digits)")
	admin := flags.String("admin", "", "`address` of /readyz and /metrics (default none)")
	leaseTTL := flags.Duration("lease-ttl", 0, "when a dead worker's jobs are taken over (default 15s)")
	child := flags.Bool("child", false, "end at once when standard input does: the program that started this is dead")
	if err := flags.Parse(args); err != nil {
		return flag.ErrHelp // Parse has printed the mistake
	}
	if *child {
		go exitAtEOF(os.Stdin)
	}

	ctx, cut := app.Signals(ctx)
	db, err := openPool(ctx, os.Getenv("DATABASE_URL"), concurrency)
	if err != nil {
		return err
	}
	defer db.Close()

	shop := &shop{db: db}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, shop.sendReceipt, dispatcher.KindConfig{Timeout: 10 * time.Second})
	dispatcher.Handle(&mux, shop.reserveStock)

	return app.Run(ctx, &mux, app.Config{
		Pool:      db,
		Queues:    map[string]dispatcher.QueueConfig{"default": {Concurrency: concurrency}},
		Worker:    *name,
		LeaseTTL:  *leaseTTL,
		AdminAddr: *admin,
		Cut:       cut,
		Logger:    slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}

// openPool opens a pool of the given size; it connects when it is used.
func openPool(ctx context.Context, url string, size int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read the database's URL: %w", err)
	}
	config.MaxConns = size
	return pgxpool.NewWithConfig(ctx, config)
}

// exitAtEOF ends the process when the other end of the pipe is gone. Its jobs
// run again elsewhere, as after any crash.
func exitAtEOF(pipe io.Reader) {
	_, _ = io.Copy(io.Discard, pipe)
	os.Exit(1)
}
