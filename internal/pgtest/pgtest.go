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
// The server is the one of POSTHASTE_TEST_DATABASE_URL, which all test binaries
// may share (the command withserver runs one for them), else one that package
// pgdev finds and this binary starts on first use; PG=18 asks for that major
// version. Without any, tests fail: green means tested.
//
// Databases are clones of a template that holds the migrations, so that a test
// pays some tens of milliseconds, and notifications and advisory locks come
// isolated: use t.Parallel freely. When a test is over, its database must
// satisfy the invariants of the schema and have no connection left. With
// PGTEST_KEEP=1 the database of a failed test is kept, and its URL logged.
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

// NewEmpty is like New for a database without any migration.
func NewEmpty(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return openChecked(t, "template0")
}

// NewEncoded is like New for a database in another encoding than UTF-8, such as LATIN1.
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

// template is the database that holds the migrations, in an encoding; "" is UTF-8.
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

// Runner is what [testing.M] is to a TestMain.
type Runner interface{ Run() int }

// Wrap is Main for a TestMain that has more to do: the returned Run runs m and
// then stops the server, before for example goleak looks for what is left:
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

// openChecked opens a pool on a clone of the template. Its connections also check the database after the test: one
// more would cost a test more than the clone does.
func openChecked(t testing.TB, template string) *pgxpool.Pool {
	t.Helper()
	c := newClone(t, template)
	pool := open(t, c.url)
	t.Cleanup(func() { c.check(t, pool) }) // and then it closes
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

// closePool closes the pool, which waits for connections in use: it would wait
// for ever for those that the test forgot.
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
