package outboxtest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A DB is a test's database. It stands for the *pgxpool.Pool of production and has its methods. Everything done through
// it happens in one transaction, which is rolled back when the test ends, so only this test sees what it commits. Make
// one with [New] or [Within]. Pass it to code that accepts a pool by an interface, such as [outbox.Beginner], or begin
// a transaction on it for code that accepts a pgx.Tx.
//
// A failed statement outside a transaction is undone on its own, and so is a transaction that is rolled back (both are
// savepoints). There is only one connection: a transaction begun while another is open waits for the other to end, and
// fails after a second, as does a statement, even a query. Several goroutines may use a DB.
type DB struct {
	t      testing.TB
	conn   *connection
	turn   chan struct{}        // one slot: a transaction, or a single statement, is open
	life   atomic.Pointer[life] // of callers with another context than a handler's
	tenant string               // app.tenant_id outside of transactions

	// The holder of the connection uses these.
	open   []*tx       // the open transaction and the savepoints in it
	beside []statement // the engine's, while a transaction is open: they outlive it
}

// statement is a statement with its arguments.
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
	errBeside = errors.New(
		"outboxtest: this needs a second connection, because a transaction is open, and a test's transaction has one: " +
			"use the open transaction, or end it first")
)

// New begins a test's transaction on a pool or connection, and rolls it back when the test ends. The database must have
// the schema (migrate.Up). It is best to have no unfinished jobs committed there, because the test sees them, too.
func New(t testing.TB, pool outbox.Beginner) *DB {
	t.Helper()
	root, err := pool.Begin(context.Background()) // it outlasts t.Context, which ends before the clean-up
	if err != nil {
		t.Fatalf("begin the test's transaction: %v", err)
	}
	t.Cleanup(func() { _ = root.Rollback(context.Background()) })
	return Within(t, root)
}

// Within returns what [New] does, in a transaction that the test itself begins and rolls back.
func Within(t testing.TB, root pgx.Tx) *DB {
	t.Helper()
	d := &DB{t: t, conn: &connection{root: root, busy: make(chan struct{}, 1)}, turn: make(chan struct{}, 1)}
	if root.Conn() == nil {
		t.Fatal("outboxtest: the transaction has no connection")
	}
	if err := root.QueryRow(context.Background(), `SELECT coalesce(current_setting('app.tenant_id', true), '')`).Scan(
		&d.tenant); err != nil {
		t.Fatalf("look at the test's transaction: %v", err)
	}
	t.Cleanup(func() { // before the rollback
		d.conn.busy <- struct{}{}
		d.conn.over = true
		<-d.conn.busy
	})
	return d
}

// Begin begins a transaction: a savepoint in the test's. Its Commit makes its changes visible to the rest of the test.
func (d *DB) Begin(ctx context.Context) (pgx.Tx, error) {
	l := d.lifeOf(ctx)
	if err := d.takeTurn(ctx, l); err != nil {
		return nil, err
	}
	began, err := d.begin(ctx, l, nil)
	if err != nil {
		<-d.turn
		return nil, err
	}
	return began, nil
}

// BeginTx begins a transaction as Begin does, whatever the options: a test's transaction keeps the isolation level with
// which it began, and is read-write.
func (d *DB) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) { return d.Begin(ctx) }

// Exec executes a statement as a transaction of its own.
func (d *DB) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = d.alone(ctx, sql, func(ctx context.Context) error {
		tag, err = d.conn.root.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

// Query executes a query as a transaction of its own. It reads all rows before it returns.
func (d *DB) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows := &rows{}
	rows.err = d.alone(ctx, sql, func(ctx context.Context) error {
		return rows.read(d.conn.root.Query(ctx, sql, args...))
	})
	return rows, rows.err
}

// QueryRow executes a query as Query does, for one row.
func (d *DB) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	found, _ := d.Query(ctx, sql, args...)
	return row{found}
}

// CopyFrom copies rows into a table, as a transaction of its own.
func (d *DB) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	from pgx.CopyFromSource,
) (n int64, err error) {
	err = d.alone(ctx, "COPY "+table.Sanitize(), func(ctx context.Context) error {
		n, err = d.conn.root.CopyFrom(ctx, table, columns, from)
		return err
	})
	return n, err
}

// SendBatch executes a batch as a transaction of its own, before it returns.
func (d *DB) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	results := &batchResults{}
	results.err = d.alone(ctx, batchName(b), func(ctx context.Context) error {
		return results.read(d.conn.root.SendBatch(ctx, b), b)
	})
	return results
}

// alone executes one statement as a transaction of its own. It does not run within an open one, whose uncommitted
// changes it would see, and whose locks would not stop it, unlike in production.
func (d *DB) alone(ctx context.Context, sql string, do func(context.Context) error) error {
	l := d.lifeOf(ctx)
	l.at("before", sql)
	defer l.at("after", sql)
	if err := d.takeTurn(ctx, l); err != nil {
		return err
	}
	defer func() { <-d.turn }()
	return d.conn.one(ctx, func(ctx context.Context) error { return d.conn.saved(ctx, do) })
}

// patience is how long a transaction or statement waits for the open transaction to end.
const patience = time.Second

func (d *DB) takeTurn(ctx context.Context, l *life) error {
	select {
	case d.turn <- struct{}{}:
		if l.isOver() { // the turn is that of the process that follows
			<-d.turn
			l.stop()
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(patience):
		return errBeside
	}
}
