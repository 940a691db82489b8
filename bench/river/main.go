// Command river measures River with the workloads and the code of `posthaste bench`, and prints the same figures.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "river:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o bench.Options
	s := settings{}
	flag.StringVar(&o.DatabaseURL, "database-url", "", "the server")
	flag.IntVar(&o.Jobs, "jobs", 0, "how many jobs")
	flag.IntVar(&o.Clients, "clients", 0, "bulk: how many at once")
	flag.DurationVar(&o.Duration, "duration", 0, "how long")
	flag.DurationVar(&o.Every, "every", 0, "latency: time between two jobs")
	flag.IntVar(&s.workers, "workers", 100, "MaxWorkers; there is no default, the manual's example has 100")
	flag.DurationVar(&s.cooldown, "cooldown", 0, "FetchCooldown")
	flag.DurationVar(&s.poll, "poll", 0, "FetchPollInterval")
	flag.DurationVar(&s.rescue, "rescue", 0, "RescueStuckJobsAfter, and JobTimeout, which may not be longer")
	flag.IntVar(&s.gc, "gc", 100, "percent of Go's collector")
	flag.Parse()
	debug.SetGCPercent(s.gc)

	if flag.Arg(0) == "worker" {
		return hold(ctx, s, flag.Arg(1), flag.Arg(2))
	}
	o.System = func(_ string, pool *pgxpool.Pool) bench.System { return &system{settings: s, pool: pool} }
	o.Worker = func(ctx context.Context, databaseURL, ledger string) (func() error, error) {
		return bench.Child(ctx, append(s.flags(), "worker", databaseURL, ledger)...)
	}
	result, err := bench.Run(ctx, flag.Arg(0), o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}

// hold runs the child process: it works on databaseURL until it is killed.
func hold(ctx context.Context, s settings, databaseURL, ledgerPath string) error {
	ledger, err := os.OpenFile(ledgerPath, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer ledger.Close()
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	stop, err := (&system{settings: s, pool: pool}).Work(ctx, func(ctx context.Context, _ int) {
		_ = bench.Hold(ctx, ledger)
	})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return stop()
}

// flags returns the flags that give a child the same settings.
func (s settings) flags() []string {
	return []string{
		"--workers", fmt.Sprint(s.workers), "--cooldown", s.cooldown.String(),
		"--poll", s.poll.String(), "--rescue", s.rescue.String(), "--gc", fmt.Sprint(s.gc),
	}
}

// settings are River's own settings; a zero means River's default.
type settings struct {
	workers, gc            int
	cooldown, poll, rescue time.Duration
}
