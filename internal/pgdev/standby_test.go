package pgdev

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The standby has what the server acknowledged, also after its promotion.
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

// While the checkpointer has not read its settings, no commit waits, although the server reports the standby as
// synchronous: what is acknowledged then is lost when the server is killed.
func TestAStandbyIsThereWhenCommitsWaitForIt(t *testing.T) {
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
	if err := standby.Kill9(); err != nil { // commits would wait for the standby, which is gone
		t.Fatal(err)
	}
	conn, err := pgx.Connect(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(background)
	for _, sql := range []string{
		`ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`,
		`SELECT pg_logical_emit_message(true, 'test', '')`, // commits once commits do not wait any more
	} {
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	checkpointer, err := strconv.Atoi(query(t, server.URL(), `SELECT pid::text FROM pg_stat_activity WHERE backend_type = 'checkpointer'`))
	if err != nil {
		t.Fatal(err)
	}
	signal := func(s syscall.Signal) {
		t.Helper()
		if err := syscall.Kill(checkpointer, s); err != nil {
			t.Fatal(err)
		}
	}
	signal(syscall.SIGSTOP)
	defer signal(syscall.SIGCONT)
	if err := standby.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	waits := make(chan error, 1)
	go func() { waits <- server.waitForStandby(t.Context()) }()
	select {
	case err := <-waits:
		t.Errorf("it is said to be waited for while the checkpointer knows nothing of it (error %v)", err)
		waits <- nil
	case <-time.After(time.Second):
	}
	signal(syscall.SIGCONT)
	if err := <-waits; err != nil {
		t.Error(err)
	}
}
