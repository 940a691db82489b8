package outboxtest

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/outbox"
)

// DB is a test's database: it stands for the *pgxpool.Pool of production and has its methods, and all that is done
// through it is in one transaction, which is rolled back when the test ends. What it commits is thereby seen by this
// test and by nobody else. Make one with [New] or [Within], and hand it to whatever takes a pool by an interface, such
// as [outbox.Beginner], or begin a transaction on it for what takes a pgx.Tx.
//
// A statement of its own is undone by itself if it fails, and so is a transaction that is rolled back (they are
// savepoints). It is one connection: a transaction that is begun while another is open waits for the end of that one,
// and fails after a second. It may be used by several goroutines.
type DB struct {
	t      testing.TB
	conn   *connection
	turn   chan struct{} // one slot: a transaction, or a statement by itself, is open
	life   atomic.Pointer[life]
	tenant string // app.tenant_id outside of transactions

	// Used by who has the connection.
	open   []*tx       // the open transaction and the savepoints in it
	beside []statement // the engine's, while a transaction is open: they do not end with it
}

// statement is one with its arguments.
type statement struct {
	sql  string
	args []any
}

var (
	_ outbox.DB       = (*DB)(nil)
	_ outbox.Beginner = (*DB)(nil)
	_ pgx.Tx          = (*tx)(nil)
)

var (
	errOver   = errors.New("outboxtest: the test is over")
	errBeside = errors.New("outboxtest: this needs a second connection, because a transaction is open, and a test's transaction has one: " +
		"use the open transaction, or end it first")
)

// New begins a test's transaction on a pool or connection, and rolls it back when the test ends. The database has the
// schema (migrate.Up), and jobs that others have committed there are best done: the test sees them, too.
func New(t testing.TB, pool outbox.Beginner) *DB {
	t.Helper()
	root, err := pool.Begin(context.Background()) // it outlasts t.Context, which ends before the clean-up
	if err != nil {
		t.Fatalf("begin the test's transaction: %v", err)
	}
	t.Cleanup(func() { _ = root.Rollback(context.Background()) })
	return Within(t, root)
}

// Within is [New] for a transaction that the test has begun, and rolls back, itself.
func Within(t testing.TB, root pgx.Tx) *DB {
	t.Helper()
	d := &DB{t: t, conn: &connection{root: root, busy: make(chan struct{}, 1)}, turn: make(chan struct{}, 1)}
	if root.Conn() == nil {
		t.Fatal("outboxtest: the transaction has no connection")
	}
	if err := root.QueryRow(context.Background(), `SELECT coalesce(current_setting('app.tenant_id', true), '')`).Scan(&d.tenant); err != nil {
		t.Fatalf("look at the test's transaction: %v", err)
	}
	t.Cleanup(func() { // before the rollback
		d.conn.busy <- struct{}{}
		d.conn.over = true
		<-d.conn.busy
	})
	return d
}

// Begin begins a transaction: a savepoint of the test's. Its Commit makes what it did visible to the rest of the test.
func (d *DB) Begin(ctx context.Context) (pgx.Tx, error) {
	if err := d.takeTurn(ctx); err != nil {
		return nil, err
	}
	began, err := d.begin(ctx, d.life.Load())
	if err != nil {
		<-d.turn
		return nil, err
	}
	return began, nil
}

// BeginTx is Begin: a test's transaction has the isolation level with which it began, and writes.
func (d *DB) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return d.Begin(ctx) }

// Exec executes a statement as a transaction of its own.
func (d *DB) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = d.alone(ctx, sql, func(ctx context.Context) error {
		tag, err = d.conn.root.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// Query executes a query as a transaction of its own. It has read all rows when it returns.
func (d *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows := &rows{}
	rows.err = d.alone(ctx, sql, func(ctx context.Context) error { return rows.read(d.conn.root.Query(ctx, sql, args...)) })
	return rows, rows.err
}

// QueryRow is Query for one row.
func (d *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	found, _ := d.Query(ctx, sql, args...)
	return row{found}
}

// CopyFrom copies rows into a table, as a transaction of its own.
func (d *DB) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, from pgx.CopyFromSource) (n int64, err error) {
	err = d.alone(ctx, "COPY "+table.Sanitize(), func(ctx context.Context) error {
		n, err = d.conn.root.CopyFrom(ctx, table, columns, from)
		return err
	})
	return n, err
}

// SendBatch executes a batch as a transaction of its own. It has done so when it returns.
func (d *DB) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	results := &batchResults{}
	results.err = d.alone(ctx, batchName(b), func(ctx context.Context) error { return results.read(d.conn.root.SendBatch(ctx, b), b) })
	return results
}

// alone executes one statement as a transaction of its own, a read also beside an open one.
func (d *DB) alone(ctx context.Context, sql string, do func(context.Context) error) error {
	if l := d.life.Load(); l != nil {
		l.at("before", sql)
		defer l.at("after", sql)
	}
	select {
	case d.turn <- struct{}{}:
		defer func() { <-d.turn }()
	default:
		if !reads(sql) {
			if err := d.takeTurn(ctx); err != nil {
				return err
			}
			defer func() { <-d.turn }()
		}
	}
	return d.conn.one(ctx, func(ctx context.Context) error { return d.conn.saved(ctx, do) })
}

func reads(sql string) bool {
	return strings.HasPrefix(strings.ToUpper(strings.TrimSpace(sql)), "SELECT")
}

// patience is how long a transaction waits for the end of the one that is open.
const patience = time.Second

func (d *DB) takeTurn(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return errBeside
	}
}
