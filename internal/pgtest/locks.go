package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// AwaitLocks returns when n sessions or more of db's database wait for a lock that another one holds, and fails the
// test when they do not within a minute. It asks by connections of db: a transaction goes on seeing the sessions as it
// found them when it first looked.
func AwaitLocks(t testing.TB, db *pgxpool.Pool, n int) {
	t.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
		var waiting int
		err := db.QueryRow(t.Context(), `
			SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND cardinality(pg_blocking_pids(pid)) > 0`).Scan(&waiting)
		if err != nil {
			t.Fatal(err)
		}
		if waiting >= n {
			return
		}
	}
	t.Fatalf("fewer than %d sessions wait for a lock", n)
}
