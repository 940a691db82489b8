// Command posthaste-proof contains the proof of posthaste and is not part of it: the fault harness, and the processes
// that it kills. `make verify` runs it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/gctune"
)

// These are the exit statuses, the same as posthaste's.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ballast := gctune.Tune() // like posthaste: some rows measure
	code := run(context.Background(), os.Args, os.Getenv, os.Stdout, os.Stderr)
	runtime.KeepAlive(ballast)
	os.Exit(code)
}

// run runs the whole program except for the process around it, and returns the exit status.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) int {
	p := program{getenv: getenv, stdout: stdout, stderr: stderr}
	err := p.root().Run(ctx, args)
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "posthaste-proof: %v\n", err)
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	return exitFailed
}

// program is the environment that every command gets.
type program struct {
	getenv         func(string) string
	stdout, stderr io.Writer
}

// usageError is a mistake on the command line.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

func (p program) root() *cli.Command {
	root := &cli.Command{
		Name:           "posthaste-proof",
		Usage:          "proves what Posthaste promises",
		Writer:         p.stdout,
		ErrWriter:      p.stderr,
		HideVersion:    true,
		ExitErrHandler: func(context.Context, *cli.Command, error) {}, // run decides
		OnUsageError:   refuseUsage,
		Action:         chooseCommand,
		Commands:       append(probeCommands(), p.verifyCommand(), p.upgradeCommand()),
	}
	for _, c := range root.Commands {
		c.OnUsageError = refuseUsage
	}
	return root
}

func refuseUsage(_ context.Context, c *cli.Command, err error, _ bool) error {
	return usagef("%w (see %s --help)", err, c.FullName())
}

// chooseCommand acts for the program without one of its commands: it shows the help, and returns a usage error for an
// unknown command.
func chooseCommand(_ context.Context, c *cli.Command) error {
	if first := c.Args().First(); first != "" {
		return usagef("there is no command %q (see posthaste-proof --help)", first)
	}
	return cli.ShowRootCommandHelp(c)
}
