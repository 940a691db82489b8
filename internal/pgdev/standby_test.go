package pgdev

import (
	"testing"

	"github.com/jackc/pgx/v5"
)

// What the server acknowledged is on the standby, which takes over as it is.
func TestAStandbyHasWhatWasAcknowledged(t *testing.T) {
	t.Parallel()
	server := start(t, Options{})
	standby, err := server.Standby(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := standby.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(background)
	if _, err := conn.Exec(t.Context(), `CREATE TABLE acknowledged AS SELECT 42 AS n`); err != nil {
		t.Fatal(err)
	}
	if got := query(t, standby.URL(), `SELECT pg_is_in_recovery()::text`); got != "true" {
		t.Errorf("in recovery: %s", got)
	}
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	if err := standby.Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := query(t, standby.URL(), `INSERT INTO acknowledged SELECT n + 1 FROM acknowledged RETURNING n::text`); got != "43" {
		t.Errorf("the promoted standby has %s, want 43", got)
	}
}
