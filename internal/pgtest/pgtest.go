// Package pgtest gives every test a migrated Postgres database of its own.
//
//	func TestMain(m *testing.M) { pgtest.Main(m) }
//
//	func TestClaim(t *testing.T) {
//		t.Parallel()
//		db := pgtest.New(t)
//		…
//	}
//
// The server is that of POSTHASTE_TEST_DATABASE_URL, which all test binaries may share (the command withserver runs one
// for them), or else one that package pgdev finds and that this binary starts on first use; PG=18 selects that major
// version. Without a server, tests fail: a pass means that they ran.
//
// Databases are clones of a migrated template. A clone takes some tens of milliseconds, and isolates notifications and
// advisory locks: use t.Parallel freely. When a test is over, its database must satisfy the invariants of the schema
// and have no connection left. With PGTEST_KEEP=1 the database of a failed test is kept, and its URL logged.
package pgtest

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

const (
	poolSize     = 10              // connections per test; the server has 500
	closeTimeout = 5 * time.Second // for a pool whose connections are in use
)

// New returns a pool on a new, migrated database. Both end with the test; a
// connection that the test does not give back fails it.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return openChecked(t, template(t, ""))
}

// NewEmpty returns a pool like New, on a database without any migration.
func NewEmpty(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return openChecked(t, "template0")
}

// NewEncoded returns a pool like New, on a database in another encoding than UTF-8, such as LATIN1.
func NewEncoded(t testing.TB, encoding string) *pgxpool.Pool {
	t.Helper()
	return openChecked(t, template(t, encoding))
}

// URL returns the URL of a new, migrated database that is dropped when the test
// is over. The test must have closed all its connections by then.
func URL(t testing.TB) string {
	t.Helper()
	c := newClone(t, template(t, ""))
	t.Cleanup(func() { c.check(t, nil) })
	return c.url
}

// template returns the name of the migrated database in an encoding; "" means UTF-8.
func template(t testing.TB, encoding string) string {
	t.Helper()
	name, err := ensureTemplate(context.Background(), serverURL(t), encoding)
	if err != nil {
		t.Fatalf("make the template database: %v", err)
	}
	return name
}

// Main runs the tests of a package, stops the server that they started, if
// any, and exits. Call it from TestMain.
func Main(m *testing.M) { os.Exit(Wrap(m).Run()) }

// Runner runs tests, like [testing.M].
type Runner interface{ Run() int }

// Wrap replaces Main in a TestMain that has more to do. The returned Runner runs m and then stops the server, for
// example before goleak looks for leaks:
//
//	goleak.VerifyTestMain(pgtest.Wrap(m))
func Wrap(m Runner) Runner { return wrapped{m} }

type wrapped struct{ tests Runner }

// Run runs the tests and stops the server.
func (w wrapped) Run() int {
	defer stopServer()
	defer closeMaintenance(context.Background())
	return w.tests.Run()
}

// openChecked opens a pool on a clone of the template. One of its connections also checks the database after the test:
// a new one would take longer than the clone does.
func openChecked(t testing.TB, template string) *pgxpool.Pool {
	t.Helper()
	c := newClone(t, template)
	pool := open(t, c.url)
	t.Cleanup(func() { c.check(t, pool) }) // runs before the pool closes
	return pool
}

func open(t testing.TB, url string) *pgxpool.Pool {
	t.Helper()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	if err := viaSocket(config.ConnConfig); err != nil {
		t.Fatal(err)
	}
	config.MaxConns = poolSize
	config.ConnConfig.RuntimeParams["application_name"] = t.Name() // in reports of leaks
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool closes the pool. That waits for connections in use, so closePool stops waiting after closeTimeout:
// connections that the test forgot are never returned.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	closed := make(chan struct{})
	go func() {
		pool.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(closeTimeout):
		t.Errorf("the test kept %d connections of its pool: rows not closed, a transaction not ended, or a goroutine not waited for?",
			pool.Stat().AcquiredConns())
	}
}
