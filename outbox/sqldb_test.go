package outbox

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func openSQL(t *testing.T) *sql.DB {
	t.Helper()
	db := stdlib.OpenDBFromPool(pgtest.New(t))
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func TestDatabaseSQLTakesJobs(t *testing.T) {
	t.Parallel()
	db := openSQL(t)
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for name, handle := range map[string]DB{"sql.Tx": FromSQL(tx), "sql.Conn": FromSQL(conn), "sql.DB": FromSQL(db)} {
		t.Run(name, func(t *testing.T) { storesAndFinds(t, handle, name) })
	}
}

func TestADatabaseSQLTransactionDecides(t *testing.T) {
	t.Parallel()
	db := openSQL(t)
	for name, c := range map[string]struct {
		end  func(*sql.Tx) error
		want int
	}{"commit": {(*sql.Tx).Commit, 2 + copyFrom}, "rollback": {(*sql.Tx).Rollback, 0}} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Enqueue(t.Context(), FromSQL(tx), greet{"ada"}, Options{}); err != nil {
			t.Fatal(err)
		}
		if _, err := Enqueue(t.Context(), FromSQL(tx), greet{"ada"}, Options{IdempotencyKey: name}); err != nil {
			t.Fatal(err)
		}
		if _, err := EnqueueMany(t.Context(), FromSQL(tx), numbered(copyFrom)); err != nil {
			t.Fatal(err)
		}
		if err := c.end(tx); err != nil {
			t.Fatal(err)
		}
		if got := count(t, db); got != c.want {
			t.Errorf("after a %s %d jobs, want %d", name, got, c.want)
		}
		if _, err := db.ExecContext(t.Context(), `DELETE FROM outbox.jobs`); err != nil {
			t.Fatal(err)
		}
	}
}

func TestABatchThroughADatabaseSQLHandleIsStoredWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	db := openSQL(t)
	poison(t, FromSQL(db))
	if ids, err := EnqueueMany(t.Context(), FromSQL(db), append(numbered(chunkSize), Request{Args: poisoned})); err == nil {
		t.Errorf("got %d ids, want an error", len(ids))
	}
	if got := count(t, db); got != 0 {
		t.Errorf("got %d jobs, want 0", got)
	}
}

func count(t *testing.T, db *sql.DB) (n int) {
	t.Helper()
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}
