package reaper

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// newRig returns a reaper that can be made to do one thing at a time.
func newRig(t testing.TB, config Config) (*Reaper, *pgxpool.Pool) {
	t.Helper()
	db := pgtest.New(t)
	return newReaper(t, db, config), db
}

func newReaper(t testing.TB, db *pgxpool.Pool, config Config) *Reaper {
	t.Helper()
	r, err := New(db, config)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// run runs a reaper until the test is over.
func run(t testing.TB, r *Reaper) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("Run after a stop = %v, want nil", err)
		}
	})
}

func exec(t testing.TB, db *pgxpool.Pool, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func query[T any](t testing.TB, db *pgxpool.Pool, sql string, args ...any) (v T) {
	t.Helper()
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// storeRunning stores n running jobs whose lease lapses so long from now.
func storeRunning(t testing.TB, db *pgxpool.Pool, n int, lapsesIn time.Duration) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, run_at, started_at, lease_owner, lease_expires_at)
		SELECT gen_random_uuid(), 'test', '{}', 'running', 1, 1, now() - interval '1 minute', now(), 'worker-1', now() + $2::interval + i * interval '1 us'
		FROM generate_series(1, $1) AS i`, n, lapsesIn)
}

func expirePass(t testing.TB, r *Reaper) {
	t.Helper()
	if err := r.expirer.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func trimPass(t testing.TB, r *Reaper) (wait time.Duration) {
	t.Helper()
	wait, err := r.trimmer.trim(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

// blocks returns how many blocks of the jobs and their indexes a pass of r reads, wherever they are.
func blocks(t testing.TB, r *Reaper, db *pgxpool.Pool, pass func()) int {
	t.Helper()
	read := func() int {
		for range r.leases.Config().MaxConns {
			conn, err := r.leases.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release() // beside the others, so that each is asked
			if _, err := conn.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
				t.Fatal(err)
			}
		}
		return query[int](t, db, `
			SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)::bigint
			FROM pg_statio_user_tables WHERE relid IN ('outbox.jobs'::regclass, 'outbox.keys'::regclass)`)
	}
	before := read()
	pass()
	return read() - before
}

// unvacuumed keeps autovacuum, which reads blocks as well, away from the jobs and the keys.
func unvacuumed(t testing.TB, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`)
	exec(t, db, `ALTER TABLE outbox.keys SET (autovacuum_enabled = off)`)
}

// await asks until the condition holds.
func await(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for range pgtest.Looks(time.Minute) {
		if holds() {
			return
		}
	}
	t.Fatalf("%s: not within a minute", what)
}

func mustUUID(id outbox.ID) pgtype.UUID { return pgtype.UUID{Bytes: id, Valid: true} }

// value reads a counter or a gauge.
func value(t testing.TB, metric prometheus.Metric) float64 {
	t.Helper()
	var m dto.Metric
	if err := metric.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}
