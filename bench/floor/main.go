// Command floor measures what the server itself allows: the statements of Posthaste, with its batch sizes, on two
// connections, and no work in Go except passing ids from one to the other. It prints the figures of `posthaste bench`.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/bench"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var o bench.Options
	flag.StringVar(&o.DatabaseURL, "database-url", "", "the server")
	flag.IntVar(&o.Jobs, "jobs", 0, "how many jobs")
	flag.IntVar(&o.Clients, "clients", 0, "bulk: how many at once")
	flag.DurationVar(&o.Duration, "duration", 0, "how long")
	alike := flag.Bool("alike", false, "both connections claim and settle, instead of one each")
	flag.Parse()
	o.System = func(url string, pool *pgxpool.Pool) bench.System { return &floor{url, pool, *alike} }
	result, err := bench.Run(ctx, flag.Arg(0), o)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(result)
}
