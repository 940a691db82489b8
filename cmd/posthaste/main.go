// Command posthaste is the process that runs alongside your application: it finds the jobs that your transactions
// enqueued and runs them, and it is the tool for inspecting them.
//
// Flags and environment variables are defined here and nowhere else; see settings.go. Programs with Go handlers are
// built from the same packages: see package app.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"github.com/urfave/cli/v3"

	"github.com/posthaste-dev/posthaste/internal/gctune"
)

// These are the exit statuses.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ballast := gctune.Tune()
	code := run(context.Background(), os.Args, os.Getenv, os.Stdin, os.Stdout, os.Stderr)
	runtime.KeepAlive(ballast)
	os.Exit(code)
}

// run runs the whole program except for the process around it, and returns the exit status.
func run(ctx context.Context, args []string, getenv func(string) string, stdin io.Reader,
	stdout, stderr io.Writer,
) int {
	out := &checked{Writer: stdout}
	p := &program{getenv: getenv, stdin: stdin, stdout: out, stderr: stderr}
	root := p.root()
	args = withVerb(root, args)
	finish(root)
	err := root.Run(ctx, args)
	if err == nil {
		err = out.failed()
	}
	if err == nil {
		return exitOK
	}
	for line := range strings.Lines(plainly(err)) {
		// The line may quote text from the database.
		fmt.Fprintf(stderr, "posthaste: %s\n", oneLine(strings.TrimRight(line, "\n")))
	}
	if hint := wayOn(err); hint != "" {
		fmt.Fprintln(stderr, "posthaste: "+hint)
	}
	if errors.Is(err, errNoDatabase) && getenv("OUTBOX_API_URL") != "" {
		fmt.Fprintln(stderr, "posthaste: "+notThroughAPI)
	}
	if _, ok := errors.AsType[*usageError](err); ok {
		return exitUsage
	}
	if coded, ok := errors.AsType[cli.ExitCoder](err); ok {
		return min(coded.ExitCode(), exitUsage) // 3 is the parser's, for help about an unknown command
	}
	return exitFailed
}

// notThroughAPI is the message of commands without an API equivalent: those that serve, migrate, measure, or inspect
// the database's own state.
const notThroughAPI = "this command works on the database itself, not through the API"

// program is the environment that every command gets.
type program struct {
	getenv func(string) string
	stdin  io.Reader
	stdout *checked
	stderr io.Writer
}

// usageError is a mistake in the command line or the environment.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

const description = `Jobs are enqueued in your own transactions (package outbox, SQL function
outbox.enqueue, or "posthaste enqueue") and carried out at least once.

Every switch is a flag and an environment variable; a flag wins over the
environment, which wins over the default. "posthaste config" prints what is in
effect and where it comes from.

Exit status: 0 all is well, 1 it failed (also if it failed for one of several
jobs, and when "problems", "doctor" or "healthcheck" finds a problem), 2 the command
line or an environment variable is wrong: then nothing was done.

Without a command "posthaste jobs", "queues", "workers" and the like list them.

Completions: source <(posthaste completion bash), or zsh; see "posthaste completion
--help" for fish and PowerShell.

On the first SIGINT or SIGTERM, "serve" and "dev" stop claiming, give back jobs
that have not started, and let running jobs finish within the grace period. The
second ends the process at once; jobs that were running run again when their
leases lapse. An orderly stop is exit status 0.`

func (p *program) root() *cli.Command {
	root := &cli.Command{
		Name:        "posthaste",
		Usage:       "transactional outbox and job dispatcher for Postgres",
		Description: description,
		Writer:      p.stdout,
		ErrWriter:   p.stderr,
		HideVersion: true, // --version is a command: see withVerb

		EnableShellCompletion:           true,
		ConfigureShellCompletionCommand: func(c *cli.Command) { c.Hidden = false },
		ExitErrHandler:                  func(context.Context, *cli.Command, error) {}, // run decides
		Commands: []*cli.Command{
			p.serveCommand(),
			p.devCommand(),
			p.migrateCommand(),
			p.enqueueCommand(),
			p.publishCommand(),
			p.jobsCommand(),
			p.dlqCommand(),
			p.operationsCommand(),
			p.queuesCommand(),
			p.workersCommand(),
			p.kindsCommand(),
			p.problemsCommand(),
			p.statsCommand(),
			p.topCommand(),
			p.doctorCommand(),
			p.auditCommand(),
			p.keysCommand(),
			p.schedulesCommand(),
			p.relayCommand(),
			p.tokensCommand(),
			p.healthcheckCommand(),
			p.configCommand(),
			p.openAPICommand(),
			p.docsCommand(),
			p.versionCommand(),
			benchCommand(),
		},
	}
	return root
}

// wantArgs checks the number of arguments that are not flags.
func wantArgs(c *cli.Command, least, most int) error {
	if n := c.NArg(); n < least || n > most {
		if most == 0 {
			return usagef("%s takes no arguments, but there is %q (see %[1]s --help)", c.FullName(), c.Args().First())
		}
		return usagef("usage: %s %s (see %[1]s --help)", c.FullName(), c.ArgsUsage)
	}
	return nil
}
