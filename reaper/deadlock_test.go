package reaper

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A trim and a statement of an operator want the same two rows, and the first row is locked at first: both wait for it,
// the operator's statement before the trim. If the trim held the second row by then, this would be a deadlock.
func TestATrimAndAnOperatorDoNotDeadlock(t *testing.T) {
	t.Parallel()
	const (
		firstKey = `SELECT FROM outbox.idempotency_keys WHERE key = 'first' FOR UPDATE`
		firstJob = `SELECT FROM outbox.jobs ORDER BY id LIMIT 1 FOR UPDATE`
	)
	// giveKeys stores the keys of a sink in the opposite order of their jobs.
	giveKeys := func(t *testing.T, db *pgxpool.Pool, jobs string) {
		exec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('s')`)
		for _, key := range []string{"first", "second"} {
			exec(t, db, `
				INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id)
				SELECT $1, 'relay:s', $2, CASE $2 WHEN 'first' THEN ids[2] ELSE ids[1] END
				FROM (SELECT array_agg(id ORDER BY ctid) AS ids FROM `+jobs+`) AS stored`, mustUUID(outbox.RootTenant), key)
		}
	}
	removeSink := func(ctx context.Context, db *pgxpool.Pool) error {
		_, err := sqlgen.New(db).RemoveSink(ctx, sqlgen.RemoveSinkParams{Sink: "s", Actor: "ada"})
		return err
	}
	config := Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: 2 * day, outbox.Dead: day}}
	for name, c := range map[string]struct {
		store  func(*testing.T, *pgxpool.Pool)
		lock   string
		act    func(context.Context, *pgxpool.Pool) error
		trim   func(context.Context, *Reaper) error
		remain string // a count of what the trim is to remove
	}{
		"keys of a day": {
			store: func(t *testing.T, db *pgxpool.Pool) {
				storeClosed(t, db, 2, outbox.Succeeded, 6*day)
				giveKeys(t, db, "outbox.history")
				storeClosed(t, db, 1, outbox.Cancelled, 6*day) // stays, and so does the day
			},
			lock: firstKey, act: removeSink, remain: `SELECT count(*) FROM outbox.history WHERE status = 'succeeded'`,
			trim: func(ctx context.Context, r *Reaper) error { _, err := r.trimmer.history.trim(ctx); return err },
		},
		"keys of a day that is dropped": {
			store: func(t *testing.T, db *pgxpool.Pool) {
				storeClosed(t, db, 2, outbox.Succeeded, 40*day)
				giveKeys(t, db, "outbox.history")
			},
			lock: firstKey, act: removeSink, remain: `SELECT count(*) FROM outbox.history`,
			trim: func(ctx context.Context, r *Reaper) error { _, err := r.trimmer.history.trim(ctx); return err },
		},
		"keys of dead letters": {
			store: func(t *testing.T, db *pgxpool.Pool) {
				storeDeadLetters(t, db, 2, outbox.Dead, 2*day)
				giveKeys(t, db, "outbox.jobs")
			},
			lock: firstKey, act: removeSink, remain: `SELECT count(*) FROM outbox.jobs`,
			trim: func(ctx context.Context, r *Reaper) error { return r.trimmer.rows.deadLetters(ctx) },
		},
		"dead letters": {
			store: func(t *testing.T, db *pgxpool.Pool) {
				storeDeadLetters(t, db, 2, outbox.Dead, 2*day)
				exec(t, db, `WITH first AS (DELETE FROM outbox.jobs WHERE id = (SELECT id FROM outbox.jobs ORDER BY id LIMIT 1) RETURNING *)
					INSERT INTO outbox.jobs SELECT * FROM first`) // behind the other
			},
			lock: firstJob, remain: `SELECT count(*) FROM outbox.jobs WHERE status = 'dead'`,
			act: func(ctx context.Context, db *pgxpool.Pool) error {
				p := sqlgen.ReplayJobsParams{Epochs: []int64{3, 3}, Spacing: pgvalue.Interval(0), Actor: "ada"}
				if err := db.QueryRow(ctx, `SELECT array_agg(id ORDER BY id) FROM outbox.jobs`).Scan(&p.Ids); err != nil {
					return err
				}
				_, err := sqlgen.New(db).ReplayJobs(ctx, p)
				return err
			},
			trim: func(ctx context.Context, r *Reaper) error { return r.trimmer.rows.deadLetters(ctx) },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, db := newRig(t, config)
			c.store(t, db)
			tx, err := db.Begin(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback(context.Background()) //nolint:errcheck // after a commit it says so
			if _, err := tx.Exec(t.Context(), c.lock); err != nil {
				t.Fatal(err)
			}
			acted, trimmed := make(chan error, 1), make(chan error, 1)
			go func() { acted <- c.act(context.Background(), db) }()
			pgtest.AwaitLocks(t, db, 1)
			go func() { trimmed <- c.trim(context.Background(), r) }()
			pgtest.AwaitLocks(t, db, 2)
			if err := tx.Commit(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := <-acted; err != nil {
				t.Errorf("the operator's statement: %v", err)
			}
			if err := <-trimmed; err != nil {
				t.Errorf("the trim: %v", err)
			}
			if n := query[int](t, db, c.remain); n != 0 {
				t.Errorf("left are %d, want 0", n)
			}
		})
	}
}
