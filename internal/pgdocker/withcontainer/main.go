// Command withcontainer runs a command beside a Postgres server in a container, for tests. It passes the server's URL
// in POSTHASTE_TEST_DATABASE_URL, and exits with the command's status. PG=18 selects that major version.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"

	"github.com/posthaste-dev/posthaste/internal/pgdocker"
)

// settings are those of a server for tests: fast, not durable, and with many connections, because every test opens a
// pool.
var settings = map[string]string{
	"fsync": "off", "full_page_writes": "off", "max_connections": "500", "max_wal_size": "512MB", "timezone": "UTC",
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: withcontainer COMMAND [ARGUMENT…]")
		os.Exit(2)
	}
	signal.Notify(make(chan os.Signal, 1), os.Interrupt) // Ctrl-C reaches the command too: the container goes last
	err := run(os.Args[1:])
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() > 0 {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "withcontainer:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	url, stop, err := pgdocker.Start(context.Background(), os.Getenv("PG"), settings)
	if err != nil {
		return err
	}
	defer stop()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "POSTHASTE_TEST_DATABASE_URL="+url)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd.Run()
}
