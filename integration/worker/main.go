// Command worker is the program that the stories kill, stop and starve: app.Run
// with a handler that does as the job's arguments say, and a ledger.
//
// It is configured by the environment: the OUTBOX_ variables of posthaste serve,
// as far as they are read below, and
//
//	STORY_LEDGER       the file to which it appends a line for everything it does
//	STORY_NAME         what it calls itself there
//	STORY_CONCURRENCY  jobs at once; 0 is the default
//	STORY_POOL         connections of the handlers' pool; 0 is 8
//	STORY_RETRY        wait after a failed attempt; 0 is the default policy
//	STORY_STALL        on: jobs of the kind stall wait for SIGCONT; see handlers.go
//
// With the argument produce it is a producer instead; see produce.go.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/outbox"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "worker:", err)
		os.Exit(1)
	}
}

func run(args []string) (err error) {
	book, err := openLedger(os.Getenv("STORY_LEDGER"), os.Getenv("STORY_NAME"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.close()) }()
	pool, err := openPool(os.Getenv("OUTBOX_DATABASE_URL"))
	if err != nil {
		return err
	}
	if len(args) > 0 && args[0] == "produce" {
		return produce(pool, book)
	}
	ctx, cut := app.Signals(context.Background())
	config, err := readConfig()
	if err != nil {
		return err
	}
	config.Pool, config.Cut = pool, cut
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, newHandlers(pool, book).handle)
	return app.Run(ctx, &mux, config)
}

func openPool(url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	n, err := number("STORY_POOL")
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(cmp.Or(n, 8))
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	return pgxpool.NewWithConfig(context.Background(), config)
}

func readConfig() (app.Config, error) {
	c := app.Config{
		DatabaseURL: os.Getenv("OUTBOX_DATABASE_URL"),
		ListenURL:   os.Getenv("OUTBOX_LISTEN_URL"),
		NoListen:    os.Getenv("OUTBOX_LISTEN") == "off",
		NoReap:      os.Getenv("OUTBOX_REAP") == "off",
		Worker:      os.Getenv("OUTBOX_WORKER"),
		AdminAddr:   os.Getenv("OUTBOX_ADMIN_ADDR"),
		Logger:      slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	concurrency, err := number("STORY_CONCURRENCY")
	errs := []error{err}
	c.Queues = map[string]dispatcher.QueueConfig{outbox.DefaultQueue: {Concurrency: concurrency}}
	var retry time.Duration
	for name, to := range map[string]*time.Duration{
		"OUTBOX_POLL_INTERVAL": &c.PollInterval, "OUTBOX_LEASE_TTL": &c.LeaseTTL, "OUTBOX_GRACE_PERIOD": &c.GracePeriod, "STORY_RETRY": &retry,
	} {
		if v := os.Getenv(name); v != "" {
			*to, err = time.ParseDuration(v)
			errs = append(errs, err)
		}
	}
	if retry > 0 {
		c.Retry = dispatcher.Delays(retry)
	}
	return c, errors.Join(errs...)
}

func number(name string) (int, error) {
	v := os.Getenv(name)
	if v == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}
