package pgtest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

// serverVariable names a running server for all test binaries.
const serverVariable = "POSTHASTE_TEST_DATABASE_URL"

// socketVariable names the same server by its Unix socket; withserver sets it.
const socketVariable = "POSTHASTE_TEST_DATABASE_SOCKET_URL"

// startTimeout includes fetching a Postgres.
const startTimeout = 5 * time.Minute

// started is this binary's own server, once there is one.
var started struct {
	sync.Mutex
	server *pgdev.Server
	err    error
}

// serverURL returns the URL of the maintenance database of the server that this binary uses.
func serverURL(t testing.TB) string {
	t.Helper()
	if url := os.Getenv(serverVariable); url != "" {
		return url
	}
	started.Lock()
	defer started.Unlock()
	if started.server == nil && started.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		started.server, started.err = StartServer(ctx)
	}
	if started.err != nil {
		t.Fatal(started.err)
	}
	return started.server.URL()
}

// viaSocket makes connections to this binary's server use its Unix socket, if that is known: a round trip costs a third
// less than over TCP. The connection string stays that of TCP, since tests pass it to proxies and other programs.
func viaSocket(config *pgx.ConnConfig) error {
	url := os.Getenv(socketVariable)
	if os.Getenv(serverVariable) == "" {
		started.Lock()
		defer started.Unlock()
		if started.server != nil {
			url = started.server.SocketURL()
		}
	}
	if url == "" {
		return nil
	}
	socket, err := pgx.ParseConfig(url)
	if err == nil && socket.Port == config.Port { // a test may have a server of its own
		config.Host, config.TLSConfig, config.Fallbacks = socket.Host, nil, nil
	}
	return err
}

// StartServer starts a server of the kind that tests use: fast, not durable, and of the major version in the variable
// PG, with the options changed. Tests themselves call [New] or [URL].
func StartServer(ctx context.Context, change ...func(*pgdev.Options)) (*pgdev.Server, error) {
	options := pgdev.Options{
		Major:     os.Getenv("PG"),
		Fast:      true,
		Container: true,
		Log:       os.Stderr,
	}
	for _, c := range change {
		c(&options)
	}
	server, err := pgdev.Start(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("tests need a Postgres (for tests the variable is %s, not DATABASE_URL): %w",
			serverVariable, err)
	}
	return server, nil
}

// stopServer stops the server if this binary started one.
func stopServer() {
	started.Lock()
	defer started.Unlock()
	if started.server == nil {
		return
	}
	if err := started.server.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "pgtest: stop the server:", err)
	}
	started.server = nil
}
