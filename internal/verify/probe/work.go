// Package probe has the programs that fault tests kill, stop and starve: a worker, which is app.Run with a handler that
// does what the job's arguments say, a producer, a consumer and a relay. All keep ledgers.
//
// They are commands of posthaste-proof, and are configured by environment variables: the OUTBOX_ variables of posthaste
// serve, as far as they are read below, and
//
//	VERIFY_LEDGER       the file to which it appends a line for everything it does
//	VERIFY_NAME         what it calls itself there
//	VERIFY_QUEUE        the queue that it works; "" is "default"
//	VERIFY_CONCURRENCY  jobs at once; 0 is the default
//	VERIFY_POOL         connections of the handlers' pool; 0 is 8
//	VERIFY_RETRY        wait after a failed attempt; 0 is the default policy
//	VERIFY_STALL        on: jobs that are to stall wait for SIGCONT; see stall.go
//	VERIFY_TRACE        on: calls to the database go to the ledger; see trace.go
//	VERIFY_HOOK         the URL to which jobs of the kind HookKind are posted; "" leaves them alone
//	VERIFY_SCHEDULES    on: declares the schedules of schedules.go
//
// The variables of the producer are in produce.go.
package probe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/verify/ledger"
	"github.com/posthaste-dev/posthaste/relay/webhook"
)

// HookKind is the kind of jobs that are posted to VERIFY_HOOK.
const HookKind = "verify.hook"

// Work runs the worker until it gets a signal, and then stops as posthaste serve does. It returns an error if
// goroutines are left after a graceful stop.
func Work(ctx context.Context) (err error) {
	book, pool, err := begin("worker")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, book.Close()) }()
	config, err := workerConfig()
	if err != nil {
		return err
	}
	watching, end := context.WithCancel(ctx)
	defer end()
	ctx, config.Cut = app.Signals(watching)
	config.Pool = pool
	var mux dispatcher.Mux
	h := newHandlers(watching, pool, book)
	dispatcher.Handle(&mux, h.handle)
	mux.HandleRaw(EchoKind, h.echo)
	transport := &http.Transport{MaxIdleConnsPerHost: 64}
	if url := os.Getenv("VERIFY_HOOK"); url != "" {
		hook, err := webhook.Handler(url, webhook.Config{Transport: transport})
		if err != nil {
			return err
		}
		mux.HandleRaw(HookKind, hook)
	}
	if err := app.Run(ctx, &mux, config); err != nil {
		return err
	}
	end()
	pool.Close()
	transport.CloseIdleConnections()
	if err := goleak.Find(); err != nil {
		return fmt.Errorf("after the stop: %w", err)
	}
	return nil
}

// begin opens the ledger and the pool of a program.
func begin(role string) (*ledger.Writer, *pgxpool.Pool, error) {
	book, err := ledger.Open(os.Getenv("VERIFY_LEDGER"), os.Getenv("VERIFY_NAME"))
	if err != nil {
		return nil, nil, err
	}
	pool, err := openPool(os.Getenv("OUTBOX_DATABASE_URL"), role, book)
	if err != nil {
		return nil, nil, errors.Join(err, book.Close())
	}
	return book, pool, nil
}

func openPool(url, role string, book *ledger.Writer) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	n, err := number("VERIFY_POOL")
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(cmp.Or(n, 8))
	config.ConnConfig.ConnectTimeout = 5 * time.Second
	config.ConnConfig.RuntimeParams["application_name"] = "verify-" + role
	if os.Getenv("VERIFY_TRACE") == "on" { // the pools of the dispatcher and the reaper copy it from here
		config.ConnConfig.Tracer = &tracer{book}
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

func workerConfig() (app.Config, error) {
	c := app.Config{
		DatabaseURL: os.Getenv("OUTBOX_DATABASE_URL"),
		ListenURL:   os.Getenv("OUTBOX_LISTEN_URL"),
		NoListen:    os.Getenv("OUTBOX_LISTEN") == "off",
		NoReap:      os.Getenv("OUTBOX_REAP") == "off",
		Worker:      os.Getenv("OUTBOX_WORKER"),
		AdminAddr:   os.Getenv("OUTBOX_ADMIN_ADDR"),
		Logger:      slog.New(slog.NewJSONHandler(os.Stderr, nil)),
	}
	concurrency, err := number("VERIFY_CONCURRENCY")
	errs := []error{err}
	c.Queues = map[string]dispatcher.QueueConfig{
		cmp.Or(os.Getenv("VERIFY_QUEUE"), engine.DefaultQueue): {Concurrency: concurrency},
	}
	retry := duration("VERIFY_RETRY", &errs)
	c.PollInterval = duration("OUTBOX_POLL_INTERVAL", &errs)
	c.LeaseTTL = duration("OUTBOX_LEASE_TTL", &errs)
	c.GracePeriod = duration("OUTBOX_GRACE_PERIOD", &errs)
	if os.Getenv("VERIFY_SCHEDULES") == "on" {
		c.Schedules = schedules()
	}
	if retry > 0 {
		c.Backoff = dispatcher.Waits(retry)
	}
	return c, errors.Join(errs...)
}

func duration(name string, errs *[]error) time.Duration {
	v := os.Getenv(name)
	if v == "" {
		return 0
	}
	d, err := time.ParseDuration(v)
	*errs = append(*errs, err)
	return d
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
