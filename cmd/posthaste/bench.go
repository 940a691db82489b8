package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/console"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/bench"
	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/outbox"
)

// benchCommand returns the benchmark: `posthaste bench WORKLOAD`.
func benchCommand() *cli.Command {
	var about strings.Builder
	for _, w := range bench.Workloads() {
		fmt.Fprintf(&about, "%-14s %s\n", w.Name, w.About)
	}
	about.WriteString("all            all workloads, with their defaults\n\n" +
		"Each workload creates a database of its own on the server and drops it. Without --database-url, the command starts a durable server for the run. It ignores DATABASE_URL, so that it measures no other database by accident.")
	return &cli.Command{
		Name:        "bench",
		Usage:       "measure this build against a Postgres",
		ArgsUsage:   "WORKLOAD",
		Description: about.String(),
		Flags:       benchFlags(),
		Commands:    []*cli.Command{benchWorkerCommand()},
		Action:      runBench,
	}
}

func benchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "database-url", Usage: "a server to measure on, as a role that may create databases"},
		jsonOrText(),
		&cli.BoolFlag{Name: "json", Usage: "the same as -o json"},
		&cli.IntFlag{Name: "jobs", Usage: "how many jobs; 0 is the workload's default"},
		&cli.IntFlag{
			Name:  "keys",
			Usage: "keys: how many keys (default 10000); tenants: how many keys the jobs share (default none)",
		},
		&cli.IntFlag{Name: "events", Usage: "relay, relay-latency: how many events (default 200000, 1000)"},
		&cli.StringFlag{
			Name:  "sink",
			Usage: "relay, relay-latency: null, nats, nats-sync-always, kafka, amqp or redis", Value: "null",
		},
		&cli.StringFlag{
			Name:  "broker",
			Usage: "relay, relay-latency: `URL` of the sink's broker, with credentials; the command creates its own stream, topic or queue there",
		},
		&cli.IntFlag{
			Name:  "sinks",
			Usage: "relay: publish to this many sinks at once that accept everything, and then to one alone",
		},
		&cli.DurationFlag{Name: "duration", Usage: "how long; 0 is the workload's default"},
		&cli.DurationFlag{Name: "every", Usage: "latency, tenants: time between two jobs (default 10ms, 20ms)"},
		&cli.IntFlag{
			Name:  "clients",
			Usage: "bulk, enqueue: concurrent producers (default 2, 64); api: connections (default 32); console: viewers (default 50)",
		},
		&cli.BoolFlag{
			Name:  "overload",
			Usage: "api: measure dispatch alone, alongside the API at work, and alongside ten times its clients",
		},
		&cli.IntFlag{Name: "n", Usage: "processes: how many processes (default 12)"},
		&cli.BoolFlag{
			Name:  "work",
			Usage: "processes: be one of them, for the jobs of --database-url, until stopped",
		},
		&cli.BoolFlag{Name: "streamed", Usage: "burndown: with an event for each change of a job"},
		&cli.BoolFlag{
			Name:  "hold-snapshot",
			Usage: "tenants: lone jobs of new tenants next to a busy one, while a transaction holds a snapshot; relay: with and without one that has published",
		},
		&cli.StringFlag{
			Name:  "notify",
			Usage: "enqueue, latency: off, transactional or coalesced; enqueue without it compares the three",
		},
	}
}

func runBench(ctx context.Context, c *cli.Command) error {
	names := c.Args().Slice()
	if len(names) != 1 {
		return cli.Exit("bench: name one workload, or all; see posthaste bench --help", 2)
	}
	if names[0] == "all" {
		names = nil
		for _, w := range bench.Workloads() {
			names = append(names, w.Name)
		}
	}
	options, err := benchOptions(c)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	closeSink, err := benchSink(ctx, c, &options)
	if err != nil {
		return cli.Exit("bench: "+err.Error(), 2)
	}
	defer closeSink()
	context.AfterFunc(ctx, stop) // a second signal does not wait for the databases to be dropped
	if c.Bool("work") {
		if names[0] != "processes" || options.DatabaseURL == "" {
			return cli.Exit("bench: --work is for processes, and needs --database-url", 2)
		}
		return bench.WorkOn(ctx, options.DatabaseURL)
	}
	if options.DatabaseURL == "" {
		server, err := pgdev.Start(ctx, pgdev.Options{Log: c.Root().ErrWriter, Major: os.Getenv("PG")})
		if err != nil {
			return err
		}
		defer func() { _ = server.Stop() }()
		options.DatabaseURL = server.URL()
	}
	for _, name := range names {
		result, err := bench.Run(ctx, name, options)
		if errors.Is(err, bench.ErrUnknownWorkload) {
			return cli.Exit("bench: "+err.Error(), 2)
		}
		if err != nil {
			return fmt.Errorf("bench: %w", err)
		}
		if err := printResult(c.Root().Writer, result, c.Bool("json") || c.String("output") == "json"); err != nil {
			return err
		}
	}
	return nil
}

// benchOptions returns the options given by the command's flags.
func benchOptions(c *cli.Command) (options bench.Options, err error) {
	options = bench.Options{
		DatabaseURL: c.String("database-url"),
		Jobs:        int(c.Int("jobs")), Keys: int(c.Int("keys")), Duration: c.Duration("duration"),
		Every: c.Duration("every"), Clients: int(c.Int("clients")), Overload: c.Bool("overload"),
		HoldSnapshot: c.Bool("hold-snapshot"), Streamed: c.Bool("streamed"), Processes: int(c.Int("n")),
		Sinks:  int(c.Int("sinks")),
		Logger: slog.New(slog.NewTextHandler(c.Root().ErrWriter, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Worker: func(ctx context.Context, databaseURL, ledger string) (func() error, error) {
			return bench.Child(ctx, "bench", "worker", databaseURL, ledger)
		},
		Process: func(ctx context.Context, databaseURL string) (func() error, error) {
			return bench.Child(ctx, "bench", "--work", "--database-url", databaseURL, "processes")
		},
		API: benchAPI, Console: benchConsole,
	}
	if mode := c.String("notify"); mode != "" {
		if options.Notify, err = parseNotify(mode); err != nil {
			return options, cli.Exit("bench: --notify: "+err.Error(), 2)
		}
	}
	if n := int(c.Int("events")); n != 0 {
		options.Jobs = n
	}
	return options, nil
}

// benchAPI returns the API as it runs in production, and a token of the root tenant.
func benchAPI(ctx context.Context, owner, pool *pgxpool.Pool) (http.Handler, string, error) {
	token, _, err := access.NewTokens(owner, access.TokensConfig{}).Create(ctx, access.Grant{
		Name: "bench", CreatedBy: "bench", Tenant: outbox.RootTenant,
		Capabilities: []access.Capability{access.JobsEnqueue, access.JobsRead},
	})
	if err != nil {
		return nil, "", err
	}
	handler, err := api.New(api.Config{Pool: pool, Authenticator: access.NewTokens(pool, access.TokensConfig{})})
	return handler, token.Reveal(), err
}

// benchConsole returns the console as it runs in production, and a token of a person who may see everything.
func benchConsole(ctx context.Context, owner, pool *pgxpool.Pool) (http.Handler, string, error) {
	token, _, err := access.NewTokens(owner, access.TokensConfig{}).Create(ctx, access.Grant{
		Name: "bench", CreatedBy: "bench", AllTenants: true, Capabilities: access.Capabilities(),
	})
	if err != nil {
		return nil, "", err
	}
	handler, err := console.New(
		console.Config{Pool: pool, Authenticator: access.NewTokens(pool, access.TokensConfig{})})
	return handler, token.Reveal(), err
}

func printResult(w io.Writer, r *bench.Result, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	t := table.NewWriter()
	t.SetOutputMirror(w)
	t.SetStyle(table.StyleLight)
	t.SetTitle("%s  (PostgreSQL %s, %d cores, fsync=%s, synchronous_commit=%s)", r.Workload,
		r.Server.Version, r.Server.Cores, r.Server.Fsync, r.Server.SynchronousCommit)
	for _, f := range r.Figures {
		format := "%.2f"
		if f.Value >= 1000 {
			format = "%.0f"
		}
		t.AppendRow(table.Row{f.Name, fmt.Sprintf(format, f.Value)})
	}
	t.Render()
	return nil
}

// benchWorkerCommand returns the command of the child process, for the workloads that kill one.
func benchWorkerCommand() *cli.Command {
	return &cli.Command{
		Name: "worker", Usage: "the process that a workload kills; it holds its jobs", ArgsUsage: "DATABASE_URL LEDGER",
		Action: func(ctx context.Context, c *cli.Command) error {
			ledger, err := os.OpenFile(c.Args().Get(1), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
			if err != nil {
				return err
			}
			defer func() { _ = ledger.Close() }()
			var mux dispatcher.Mux
			dispatcher.Handle(&mux, func(ctx context.Context, _ *outbox.Job[bench.Noop]) error {
				return bench.Hold(ctx, ledger)
			})
			return app.Run(ctx, &mux, app.Config{DatabaseURL: c.Args().Get(0)})
		},
	}
}
