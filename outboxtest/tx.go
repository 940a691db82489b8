package outboxtest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// tx is a transaction on a [DB], or a savepoint within one.
type tx struct {
	db     *DB
	life   *life
	outer  *tx // nil if the user sees it as a transaction rather than a savepoint
	name   string
	beside int  // how many statements of the engine preceded it
	closed bool // used by the holder of the connection
}

// begin begins a transaction, or a savepoint if it is within an outer one.
func (d *DB) begin(ctx context.Context, l *life, outer *tx) (began *tx, err error) {
	err = d.conn.one(ctx, func(ctx context.Context) error {
		if outer != nil && outer.closed {
			return pgx.ErrTxClosed
		}
		began = &tx{
			db: d, life: l, outer: outer, name: fmt.Sprintf("outboxtest_%d", len(d.open)), beside: len(d.beside),
		}
		if err := d.conn.control(ctx, "SAVEPOINT "+began.name); err != nil {
			return err
		}
		d.open = append(d.open, began)
		return nil
	})
	return began, err
}

// abandon rolls back the transaction of a dead process. If another of its goroutines has the turn, but no transaction
// yet, abandon waits for its statement.
func (d *DB) abandon() error {
	for {
		err := d.conn.one(context.Background(), func(ctx context.Context) error {
			if len(d.open) == 0 {
				return nil
			}
			return d.open[0].undo(ctx)
		})
		if err != nil {
			return err
		}
		select {
		case d.turn <- struct{}{}:
			<-d.turn
			return nil
		case <-time.After(time.Millisecond):
		}
	}
}

// tenantAgain returns the statement that restores the tenant after a transaction has changed it.
func (d *DB) tenantAgain() string {
	return fmt.Sprintf(`SELECT set_config('app.tenant_id', '%s', true)`, strings.ReplaceAll(d.tenant, `'`, `''`))
}

// Begin makes a savepoint.
func (t *tx) Begin(ctx context.Context) (pgx.Tx, error) {
	t.life.alive()
	return t.db.begin(ctx, t.life, t)
}

// Commit keeps the changes, which take effect for the rest of the test at once.
func (t *tx) Commit(ctx context.Context) error {
	if t.outer == nil {
		t.life.at("before", "COMMIT")
		defer t.life.at("after", "COMMIT")
	}
	return t.db.conn.one(ctx, func(ctx context.Context) error {
		if t.closed {
			return pgx.ErrTxClosed
		}
		if t.db.conn.root.Conn().PgConn().TxStatus() == 'E' {
			return errors.Join(pgx.ErrTxCommitRollback, t.undo(ctx))
		}
		sql := "RELEASE SAVEPOINT " + t.name
		if t.outer == nil {
			sql += "; " + t.db.tenantAgain()
		}
		if err := t.db.conn.control(ctx, sql); err != nil {
			return errors.Join(err, t.undo(ctx))
		}
		t.end()
		return nil
	})
}

// Rollback undoes the changes.
func (t *tx) Rollback(ctx context.Context) error {
	t.life.alive()
	return t.db.conn.one(context.WithoutCancel(ctx), func(ctx context.Context) error {
		if t.closed {
			return pgx.ErrTxClosed
		}
		return t.undo(ctx)
	})
}

// undo undoes the changes made in t, but not what the engine has stored meanwhile: in production the engine has a
// connection of its own. The caller holds the connection.
func (t *tx) undo(ctx context.Context) error {
	again := t.db.beside[t.beside:]
	t.end()
	err := t.db.conn.control(ctx, fmt.Sprintf("ROLLBACK TO SAVEPOINT %s; RELEASE SAVEPOINT %[1]s", t.name))
	for _, s := range again {
		if _, failed := t.db.conn.root.Exec(ctx, s.sql, s.args...); failed != nil {
			err = errors.Join(err, fmt.Errorf("store again what the job has reported: %w", failed))
		}
	}
	return err
}

// end closes t and everything open within it.
func (t *tx) end() {
	for n, open := range t.db.open {
		if open == t {
			for _, inner := range t.db.open[n:] {
				inner.closed = true
			}
			t.db.open = t.db.open[:n]
			break
		}
	}
	if t.outer == nil {
		t.db.beside = nil
		<-t.db.turn
	}
}

// do executes a statement of t.
func (t *tx) do(ctx context.Context, sql string, do func(context.Context) error) error {
	t.life.at("before", sql)
	defer t.life.at("after", sql)
	return t.db.conn.one(ctx, func(ctx context.Context) error {
		if t.closed {
			return pgx.ErrTxClosed
		}
		return do(ctx)
	})
}

func (t *tx) Exec(ctx context.Context, sql string, args ...any) (tag pgconn.CommandTag, err error) {
	err = t.do(ctx, sql, func(ctx context.Context) error {
		tag, err = t.db.conn.root.Exec(ctx, sql, args...)
		return err
	})
	return tag, err
}

func (t *tx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	rows := &rows{}
	rows.err = t.do(ctx, sql, func(ctx context.Context) error {
		return rows.read(t.db.conn.root.Query(ctx, sql, args...))
	})
	return rows, rows.err
}

func (t *tx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	found, _ := t.Query(ctx, sql, args...)
	return row{found}
}

func (t *tx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string,
	from pgx.CopyFromSource,
) (n int64, err error) {
	err = t.do(ctx, "COPY "+table.Sanitize(), func(ctx context.Context) error {
		n, err = t.db.conn.root.CopyFrom(ctx, table, columns, from)
		return err
	})
	return n, err
}

func (t *tx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	results := &batchResults{}
	results.err = t.do(ctx, batchName(b), func(ctx context.Context) error {
		return results.read(t.db.conn.root.SendBatch(ctx, b), b)
	})
	return results
}

func (t *tx) Prepare(ctx context.Context, name, sql string) (description *pgconn.StatementDescription, err error) {
	err = t.db.conn.one(ctx, func(ctx context.Context) error {
		description, err = t.db.conn.root.Prepare(ctx, name, sql)
		return err
	})
	return description, err
}

// LargeObjects and Conn belong to the connection: work done through them is in the test's transaction, but passes no
// boundary of [CrashEverywhere].
func (t *tx) LargeObjects() pgx.LargeObjects { return t.db.conn.root.LargeObjects() }

func (t *tx) Conn() *pgx.Conn { return t.db.conn.root.Conn() }
