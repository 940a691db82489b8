package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/verify"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
)

// verifyCommand returns the fault harness: `posthaste-proof verify [ROW…]`.
func (p program) verifyCommand() *cli.Command {
	return &cli.Command{
		Name:      "verify",
		Usage:     "run the scorecard: inject faults into real processes and check what Posthaste promises",
		ArgsUsage: "[ROW…]",
		Description: `Each row starts worker and producer processes on its own Postgres server, injects
faults on a schedule that the seed decides, ends the faults, waits until every job
is done, and compares the database with ledgers that the processes write outside of
it. Without ROW it runs every row of the tier. docs/proof.md explains the rows.

The exit status is 0 if no row failed. A row is skipped, and says why, if this
machine lacks something that its fault needs.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "tier", Value: "P", Usage: "`P|S`: P takes seconds, S is a soak"},
			&cli.Uint64Flag{Name: "seed", Usage: "`seed` of the schedule of faults; 0 draws one and prints it"},
			&cli.StringFlag{Name: "out", Usage: "`folder` for the JSON record of each row (default: a temporary one)"},
			&cli.BoolFlag{
				Name:  "pooler",
				Usage: "connect the processes through PgBouncer in transaction mode, except for LISTEN",
			},
			&cli.BoolFlag{Name: "list", Usage: "list the rows instead of running them"},
			&cli.StringFlag{
				Name:  "write-proof",
				Usage: "write the page `FILE` instead of running rows: add the records in the folder given as argument to FILE's .jsonl and .csv, and write FILE from those",
			},
		},
		Action: p.verify,
	}
}

// probeCommands returns the child processes of verify.
func probeCommands() []*cli.Command {
	return []*cli.Command{
		{
			Name: "verify-worker", Usage: "child process of verify: executes jobs",
			Action: func(ctx context.Context, _ *cli.Command) error { return probe.Work(ctx) },
		},
		{
			Name: "verify-consumer", Usage: "child process of verify: consumes messages through an inbox",
			Action: func(ctx context.Context, _ *cli.Command) error { return probe.Consume(ctx) },
		},
		{
			Name: "verify-relay", Usage: "child process of verify: publishes events",
			Action: func(ctx context.Context, _ *cli.Command) error { return probe.Relay(ctx) },
		},
		{
			Name: "verify-producer", Usage: "child process of verify: enqueues jobs",
			Action: func(ctx context.Context, _ *cli.Command) error { return probe.Produce(ctx) },
		},
	}
}

func (p program) verify(ctx context.Context, c *cli.Command) error {
	tier, err := tierOf(c)
	if err != nil {
		return err
	}
	if file := c.String("write-proof"); file != "" {
		return writeProof(c, file)
	}
	rows, err := verify.Find(tier, c.Args().Slice()...)
	if err != nil {
		return usagef("%w (see posthaste-proof verify --list)", err)
	}
	if c.Bool("list") {
		return p.listRows(rows)
	}
	options := verify.Options{
		Tier: tier, Seed: c.Uint64("seed"), Out: c.String("out"), Pooler: c.Bool("pooler"),
		Major: p.getenv("PG"), Log: p.stderr,
	}
	if options.Seed == 0 {
		options.Seed = rand.Uint64N(1 << 32)
	}
	if options.Out == "" {
		if options.Out, err = os.MkdirTemp("", "posthaste-verify-"); err != nil {
			return err
		}
	}
	if options.Program, err = os.Executable(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return p.runRows(ctx, rows, options)
}

func tierOf(c *cli.Command) (verify.Tier, error) {
	tier := verify.Tier(strings.ToUpper(c.String("tier")))
	if tier != verify.TierP && tier != verify.TierS {
		return "", usagef("--tier is %q, want P or S", c.String("tier"))
	}
	return tier, nil
}

func (p program) runRows(ctx context.Context, rows []verify.Row, o verify.Options) error {
	fmt.Fprintf(p.stdout, "tier %s, seed %d, records in %s\n", o.Tier, o.Seed, o.Out)
	failed, skipped := 0, 0
	for _, row := range rows {
		fmt.Fprintf(p.stdout, "%-4s %s\n", row.Name, row.Title)
		bar := newBar(p.stderr, row.Name)
		o.Progress = bar.at
		record, err := verify.Do(ctx, row, o)
		bar.end()
		if err != nil {
			return fmt.Errorf("verify %s: %w", row.Name, err)
		}
		p.summarize(record)
		switch {
		case record.Skipped != "":
			skipped++
		case !record.Passed:
			failed++
		}
		if ctx.Err() != nil {
			return errors.New("interrupted")
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d rows failed", failed, len(rows))
	}
	if skipped > 0 {
		fmt.Fprintf(p.stdout, "%d rows passed, %d skipped\n", len(rows)-skipped, skipped)
		return nil
	}
	fmt.Fprintf(p.stdout, "all %d rows passed\n", len(rows))
	return nil
}

// summarize prints the result of a run: in two lines if it passed, otherwise with everything that did not hold.
func (p program) summarize(r *verify.Record) {
	if r.Skipped != "" {
		fmt.Fprintf(p.stdout, "     skipped, %s\n", r.Skipped)
		return
	}
	verdict := "passed"
	if !r.Passed {
		verdict = "FAILED"
	}
	faults := 0
	for _, n := range r.FaultCounts {
		faults += n
	}
	fmt.Fprintf(p.stdout, "     %s in %.0f s: %d jobs, %d executions, %d faults, %d checks", verdict, r.Took,
		r.Counts["jobs"], r.Counts["executions"], faults, len(r.Expectations))
	for _, f := range r.Figures {
		fmt.Fprintf(p.stdout, ", %s %.2f", f.Name, f.Value)
	}
	fmt.Fprintln(p.stdout)
	for _, e := range r.Violated() {
		fmt.Fprintf(p.stdout, "     violated: %s\n", e)
	}
	if r.Error != "" {
		fmt.Fprintf(p.stdout, "     not finished: %s\n", r.Error)
	}
	if !r.Passed {
		fmt.Fprintf(p.stdout, "     repeat: %s\n", r.Command)
	}
}

func (p program) listRows(rows []verify.Row) error {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.OptionsNoBordersAndSeparators
	t.SetStyle(style)
	t.AppendHeader(table.Row{"row", "tiers", "title", "fault"})
	for _, row := range rows {
		var tiers []string
		for _, t := range row.Tiers {
			tiers = append(tiers, string(t))
		}
		t.AppendRow(table.Row{row.Name, strings.Join(tiers, "+"), row.Title, row.Fault})
	}
	_, err := fmt.Fprintln(p.stdout, t.Render())
	return err
}

// writeProof adds the records of a folder to earlier ones in the files next to the page, and writes the page from all
// of them.
func writeProof(c *cli.Command, file string) error {
	if c.NArg() != 1 {
		return usagef("usage: posthaste-proof verify --write-proof FILE FOLDER")
	}
	records, err := verify.ReadRecords(c.Args().First())
	if err != nil {
		return err
	}
	if len(records) == 0 {
		return fmt.Errorf("no records in %s", c.Args().First())
	}
	beside := strings.TrimSuffix(file, filepath.Ext(file))
	runs, err := addTo(beside+".csv", verify.ReadRuns, func(old []verify.RunLine) []verify.RunLine {
		return verify.AddRuns(old, records)
	}, verify.WriteRuns)
	if err != nil {
		return err
	}
	shown, err := addTo(beside+".jsonl", verify.ReadKept, func(old []*verify.Record) []*verify.Record {
		return verify.Newest(append(old, records...))
	}, verify.WriteKept)
	if err != nil {
		return err
	}
	out, err := os.Create(filepath.Clean(file))
	if err != nil {
		return err
	}
	return errors.Join(verify.WriteProof(out, shown, runs), out.Close())
}

// addTo rewrites a file with additions to its content; the file need not exist.
func addTo[T any](file string, read func(io.Reader) ([]T, error), add func(old []T) []T,
	write func(io.Writer, []T) error,
) ([]T, error) {
	var content []T
	old, err := os.ReadFile(filepath.Clean(file))
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if content, err = read(bytes.NewReader(old)); err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}
	}
	content = add(content)
	var text bytes.Buffer
	if err := write(&text, content); err != nil {
		return nil, err
	}
	return content, os.WriteFile(filepath.Clean(file), text.Bytes(), 0o644)
}
