package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/verify"
)

// upgradeCommand returns `posthaste-proof upgrade --previous FOLDER`.
func (p program) upgradeCommand() *cli.Command {
	return &cli.Command{
		Name:  "upgrade",
		Usage: "prove that the previous release and this build work side by side on this build's schema",
		Description: `The previous release creates the schema, and this build migrates it. Then producers
and workers of both builds run and are killed with kill -9, and the database is
compared with ledgers that they write outside of it. "make upgrade-test" builds the
previous release and runs this command.`,
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name:  "previous",
				Usage: "`folder` with posthaste and posthaste-proof of the previous release",
			},
			&cli.StringFlag{Name: "tier", Value: "P", Usage: "`P|S`: P takes seconds, S is a soak"},
			&cli.Uint64Flag{Name: "seed", Usage: "`seed` of the schedule of faults; 0 draws one and prints it"},
			&cli.StringFlag{Name: "out", Usage: "`folder` for the JSON record (default: a temporary one)"},
		},
		Action: p.upgrade,
	}
}

func (p program) upgrade(ctx context.Context, c *cli.Command) error {
	tier, err := tierOf(c)
	if err != nil {
		return err
	}
	options := verify.Options{
		Tier: tier, Seed: c.Uint64("seed"), Out: c.String("out"), Previous: c.String("previous"),
		Major: p.getenv("PG"), Log: p.stderr,
	}
	if options.Program, err = os.Executable(); err != nil {
		return err
	}
	for _, folder := range []string{options.Previous, filepath.Dir(options.Program)} {
		for _, name := range []string{"posthaste", "posthaste-proof"} {
			if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
				return usagef("a build is missing: %w", err)
			}
		}
	}
	if options.Seed == 0 {
		options.Seed = rand.Uint64N(1 << 32)
	}
	if options.Out == "" {
		if options.Out, err = os.MkdirTemp("", "posthaste-upgrade-"); err != nil {
			return fmt.Errorf("make a folder for the record: %w", err)
		}
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return p.runRows(ctx, []verify.Row{verify.Upgrade()}, options)
}
