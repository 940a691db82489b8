// Command withserver runs a command beside a Postgres server for tests, which all test binaries then share instead of
// starting one each:
//
//	go run ./internal/pgtest/withserver go test ./...
//
// It passes the server's URL in POSTHASTE_TEST_DATABASE_URL (and starts no server if that is set already), and exits
// with the command's status. Servers that tests start themselves do not run initdb. With PGTEST_KEEP=1 the server stays
// up after a failure until Ctrl-C.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

const (
	variable       = "POSTHASTE_TEST_DATABASE_URL"
	socketVariable = "POSTHASTE_TEST_DATABASE_SOCKET_URL"
	startTimeout   = 5 * time.Minute
)

func main() {
	args := os.Args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: withserver [--] COMMAND [ARGUMENT…]")
		os.Exit(2)
	}
	code, err := run(args)
	if err != nil {
		fmt.Fprintln(os.Stderr, "withserver:", err)
		code = 1
	}
	os.Exit(code)
}

// run runs the command with a server and returns the command's exit status.
func run(args []string) (code int, err error) {
	// Ctrl-C reaches the command, too, and SIGTERM is passed on: the command decides when to end, and the server ends
	// last.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)

	if os.Getenv(variable) != "" {
		fmt.Fprintln(os.Stderr, "withserver: using the server of", variable)
		return runCommand(args, signals)
	}
	timed, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	ctx, started := signal.NotifyContext(timed, os.Interrupt, syscall.SIGTERM)
	defer started()
	server, err := pgtest.StartServer(ctx, func(o *pgdev.Options) { o.KeepInitial = true })
	if err != nil {
		return 0, err
	}
	started()
	defer func() { err = errors.Join(err, server.Stop()) }()
	fmt.Fprintln(os.Stderr, "withserver: using", server)
	for name, value := range map[string]string{
		variable: server.URL(), socketVariable: server.SocketURL(), pgdev.InitialVariable: server.Initial(),
	} {
		if err := os.Setenv(name, value); err != nil {
			return 0, err
		}
	}
	code, err = runCommand(args, signals)
	if code != 0 && os.Getenv("PGTEST_KEEP") == "1" {
		fmt.Fprintf(os.Stderr, "withserver: failed; the server stays at %s until Ctrl-C\n", server.URL())
		<-signals
	}
	return code, err
}

func runCommand(args []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			if s == syscall.SIGTERM {
				_ = cmd.Process.Signal(s) // it may have ended just now
			}
		case err := <-ended:
			return exitStatus(err)
		}
	}
}

// exitStatus returns the command's exit status, or 128 + n after death by signal n, as in a shell.
func exitStatus(err error) (int, error) {
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok {
		return 0, err
	}
	if status, ok := exit.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return exit.ExitCode(), nil
}
