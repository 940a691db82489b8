package integration

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Postgres crashes and comes back three times under two workers and a producer
// that repeats what failed, with idempotency keys: no job is lost and no effect
// made twice; the processes stay, say that they are not ready, and recover by
// themselves; and a job whose handler does not use the database needs no second
// attempt.
func TestPostgresCrashesInMidFlow(t *testing.T) {
	s := newFaultStory(t)
	a, b := s.worker("a", "VERIFY_RETRY=200ms").ready(), s.worker("b", "VERIFY_RETRY=200ms").ready()
	stop := s.produce()

	var longest time.Duration
	for _, crash := range []func(){s.restart, func() { s.crashVisibly(a, b) }, s.restart} {
		s.awaitClosed(s.closed() + 200)
		down := time.Now()
		crash()
		longest = max(longest, time.Since(down))
	}
	s.awaitClosed(s.closed() + 200)
	ids := stop()
	s.awaitClosed(len(ids))
	a.ready()
	b.ready()
	s.checkClosed(ids)
	s.checkEffects(s.ids(`WHERE verb = 'effect'`))
	s.checkLedger()
	if again := s.ids(`WHERE verb = 'sleep' AND attempt <> 1`); len(again) > 0 {
		t.Errorf("%d jobs spent attempts on the outage, for example %s: %+v", len(again), again[0], s.row(again[0]))
	}
	// Within its lease, a worker that finished during the outage has time to say so.
	lapsed := s.ids(`WHERE verb = 'sleep' AND lost_leases > 0`)
	t.Logf("%d jobs; the longest outage took %s; %d leases lapsed", len(ids), longest.Round(time.Millisecond), len(lapsed))
	if longest < 5*time.Second && len(lapsed) > 0 {
		t.Errorf("%d jobs were run again although the outage was shorter than their leases, for example %s", len(lapsed), lapsed[0])
	}
}

// restart crashes the server and starts it again.
func (s *story) restart() {
	s.Helper()
	if err := s.server.Restart(s.Context(), pgdev.Immediate); err != nil {
		s.Fatal(err)
	}
}

// crashVisibly kills the server and starts it again when the processes have said
// that it is away.
func (s *story) crashVisibly(processes ...*process) {
	s.Helper()
	if err := s.server.Kill9(); err != nil {
		s.Fatal(err)
	}
	for _, p := range processes {
		p.awaitReadyz(http.StatusServiceUnavailable, "unready", "database", "down")
	}
	if err := s.server.StartAgain(s.Context()); err != nil {
		s.Fatal(err)
	}
	for _, p := range processes {
		p.ready()
	}
}

// produce enqueues a job every few milliseconds, each with an idempotency key and
// as often as it takes, until stop is called, which returns the ids.
func (s *story) produce() (stop func() []outbox.ID) {
	ctx, cancel := context.WithCancel(s.Context())
	var producing sync.WaitGroup
	var ids []outbox.ID
	var lost error
	producing.Go(func() {
		for n := 0; ctx.Err() == nil && lost == nil; n++ {
			var id outbox.ID
			if id, lost = s.insist(n); lost == nil {
				ids = append(ids, id)
			}
		}
	})
	return func() []outbox.ID {
		s.Helper()
		cancel()
		producing.Wait()
		if lost != nil {
			s.Fatal(lost)
		}
		return ids
	}
}

// insist enqueues until the database says yes. Half of the jobs make an effect,
// half of them only take their time.
func (s *story) insist(n int) (id outbox.ID, err error) {
	job := task{N: n, Do: "effect", Ms: n % 20}
	if n%2 == 0 {
		job = task{N: n, Do: "sleep", Ms: n % 200}
	}
	options := outbox.Options{IdempotencyKey: fmt.Sprint(n), MaxAttempts: 1000}
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(glance) {
		ctx, cancel := context.WithTimeout(background, 5*time.Second)
		id, err = outbox.Enqueue(ctx, s.db, job, options)
		cancel()
		if err == nil {
			time.Sleep(3 * time.Millisecond) // the pace
			return id, nil
		}
	}
	return id, fmt.Errorf("job %d cannot be enqueued: %w", n, err)
}

// ids is the closed jobs of which a condition holds.
func (s *story) ids(where string) (ids []outbox.ID) {
	s.Helper()
	for _, text := range s.texts(`SELECT id::text FROM (SELECT *, convert_from(payload, 'UTF8')::jsonb ->> 'do' AS verb FROM outbox.history) AS closed ` + where) {
		id, err := outbox.ParseID(text)
		if err != nil {
			s.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// The server turns read-only in mid-flow, as after a failover that left us on a
// standby: the worker and the real binary say that they are not ready, log a few
// lines and ask a few questions a second, and work on when it can be written to.
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
	time.Sleep(time.Second) // until the server's statistics have what was before
	lines, statements := len(a.lines())+len(b.lines()), s.transactions()
	time.Sleep(duration)
	lines, statements = len(a.lines())+len(b.lines())-lines, s.transactions()-statements
	t.Logf("while read-only, in %s: %d log lines, %d transactions, of two processes", duration, lines, statements)
	// A loop that spins does thousands. The transactions are also those of new
	// sessions and of autovacuum, which a new database has a lot of.
	if most := int(duration.Seconds()) * 20; lines > most {
		t.Errorf("they log %d lines in %s, want %d at most", lines, duration, most)
	}
	if most := int(duration.Seconds()) * 200; statements > most {
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

// administrator runs statements on a session that may write whatever the server's
// default is.
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

// transactions is how many the story's database has seen, our own included. A
// session tells with a delay of up to a second.
func (s *story) transactions() int {
	s.Helper()
	return s.count(`SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()`)
}

func (p *process) lines() []string { return strings.Split(p.logs(), "\n") }
