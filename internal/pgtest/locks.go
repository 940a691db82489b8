package pgtest

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
)

// AwaitLocks returns when at least n sessions of db's database wait for a lock that another session holds, and fails
// the test if that takes longer than a minute. It uses connections of db: within one transaction, it would always see
// the sessions as of its first query.
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
