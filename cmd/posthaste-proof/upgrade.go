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
		Usage: "prove that the release before and this build work side by side on this build's schema",
		Description: `The release before makes the schema, this build migrates it. Then producers and
workers of both work, and are killed with -9; ledgers outside of the database are
compared with it. "make upgrade-test" builds the release before and runs this.`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "previous", Usage: "`folder` with posthaste and posthaste-proof of the release before"},
			&cli.StringFlag{Name: "tier", Value: "P", Usage: "`P|S`: seconds, or a soak"},
			&cli.Uint64Flag{Name: "seed", Usage: "decides the faults; 0 draws one and prints it"},
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
	options := verify.Options{Tier: tier, Seed: c.Uint64("seed"), Out: c.String("out"), Previous: c.String("previous"), Major: p.getenv("PG"), Log: p.stderr}
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
			return fmt.Errorf("a folder for the record: %w", err)
		}
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	return p.runRows(ctx, []verify.Row{verify.Upgrade()}, options)
}
