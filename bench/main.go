// Command bench compares this project with its peers: the same workloads, on the same server, in the same run,
// alternately. It prints the table and writes docs/benchmarks.md with a plot for each question.
//
//	make bench
//	go run . --only burndown,steady --rounds 5
//	go run . --render        # the report again, from docs/benchmarks/results.jsonl
//
// Each system is a program of its own that prints one JSON object of figures: `posthaste bench`, river/, graphile/,
// watermill/ and floor/. The last one is not a system, but runs our statements without our program.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

// published is the folder of the report that readers see.
const published = "../docs"

type options struct {
	databaseURL, out string
	only             []string
	rounds           int
	quick, render    bool
}

func main() {
	var o options
	var only string
	flag.StringVar(&o.databaseURL, "database-url", "", "a server to measure on; without it a durable one is started")
	flag.StringVar(&o.out, "out", published, "the folder of the report")
	flag.StringVar(&only, "only", "", "measurements, separated by commas: "+strings.Join(names(), ", "))
	flag.IntVar(&o.rounds, "rounds", 3, "how often each is measured")
	flag.BoolVar(&o.quick, "quick", false,
		"small sizes and one round, to try this command; the figures are meaningless")
	flag.BoolVar(&o.render, "render", false, "measure nothing, write the report of the last run again")
	flag.Parse()
	if only != "" {
		o.only = strings.Split(only, ",")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.quick && o.out == published {
		return errors.New("--quick needs an --out of its own: what it measures is not to be published")
	}
	var failed error
	if !o.render {
		failed = o.measure(ctx)
	}
	results, err := readResults(o.resultsPath())
	if err != nil {
		return errors.Join(failed, err)
	}
	results.printSummary(os.Stdout)
	return errors.Join(failed, results.writeReport(o.out))
}

func (o options) resultsPath() string { return filepath.Join(o.out, "benchmarks", "results.jsonl") }

// measure does all the work and writes the results to a file, one line each, including those before a failure.
func (o options) measure(ctx context.Context) (err error) {
	chosen, err := choose(o.only)
	if err != nil {
		return err
	}
	programs, err := os.MkdirTemp("", "posthaste-bench")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(programs)) }()
	systems, err := prepare(ctx, programs)
	if err != nil {
		return err
	}
	server, err := pgdev.Start(ctx, pgdev.Options{DatabaseURL: o.databaseURL, Log: os.Stderr, Major: os.Getenv("PG")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()

	out, err := createResults(o.resultsPath())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	around, err := describe(ctx, server.URL(), systems)
	if err != nil {
		return err
	}
	r := &series{options: o, url: server.URL(), systems: systems, out: out}
	if err := r.record(record{Environment: around}); err != nil {
		return err
	}
	if err := r.tune(ctx, chosen); err != nil {
		return err
	}
	return r.rounds(ctx, chosen)
}
