package integration

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// The server turns read-only during work, as after a failover that leaves us connected to a standby: the worker and the
// real binary report that they are not ready, log a few lines and send a few queries per second, and continue when the
// server takes writes again.
func TestTheServerTurnsReadOnly(t *testing.T) {
	const duration = 6 * time.Second
	s := newFaultStory(t)
	admin := s.administrator()
	a, b := s.worker("a", "OUTBOX_LEASE_TTL=3s").ready(), s.serve("b", "OUTBOX_WEBHOOKS=nothing=http://127.0.0.1:9")
	b.ready()
	running := s.enqueueMany(20, func(i int) task { return task{N: i, Do: "sleep", Ms: 3000} })
	s.awaitEntries(len(running), "start")

	admin(`ALTER SYSTEM SET default_transaction_read_only = on`, `SELECT pg_reload_conf()`)
	for _, p := range []*process{a, b} {
		p.awaitReadyz(http.StatusServiceUnavailable, "unready", "database", "read-only")
	}
	time.Sleep(time.Second) // until the server's statistics include what happened before
	lines, statements := len(a.lines())+len(b.lines()), s.transactions()
	time.Sleep(duration)
	lines, statements = len(a.lines())+len(b.lines())-lines, s.transactions()-statements
	t.Logf("while read-only, in %s: %d log lines, %d transactions, of two processes", duration, lines, statements)
	// A busy loop makes thousands. The count includes new sessions, and autovacuum, which is busy in a new database.
	if most := int(duration.Seconds()) * 4; lines > most {
		t.Errorf("they log %d lines in %s, want %d at most", lines, duration, most)
	}
	if most := int(duration.Seconds()) * 100; statements > most {
		t.Errorf("they make %d transactions in %s, want %d at most", statements, duration, most)
	}

	admin(`ALTER SYSTEM RESET default_transaction_read_only`, `SELECT pg_reload_conf()`)
	a.ready()
	b.ready()
	more := s.enqueueMany(20, func(i int) task { return task{N: i, Do: "effect"} })
	s.awaitClosed(len(running) + len(more))
	s.checkClosed(append(running, more...))
	s.checkEffects(more)
	s.checkLedger()
}

// administrator returns a function that runs statements in a session that may write whatever the server's default is.
func (s *story) administrator() func(statements ...string) {
	return func(statements ...string) {
		s.Helper()
		conn, err := pgx.Connect(s.Context(), s.server.URL())
		if err != nil {
			s.Fatal(err)
		}
		defer func() { _ = conn.Close(background) }()
		for _, sql := range append([]string{`SET default_transaction_read_only = off`}, statements...) {
			if _, err := conn.Exec(s.Context(), sql); err != nil {
				s.Fatalf("%s: %v", sql, err)
			}
		}
	}
}

// transactions returns how many transactions the story's database has counted, including ours. A session reports them
// with a delay of up to a second.
func (s *story) transactions() int {
	s.Helper()
	return s.count(`SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`)
}

func (p *process) lines() []string { return strings.Split(p.logs(), "\n") }
