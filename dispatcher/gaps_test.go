package dispatcher_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A transaction holds a snapshot, and the front of a busy tenant's jobs is full of dead entries. The first job of a new
// tenant starts at once all the same, with a key or without.
func TestANewTenantDoesNotWaitForDeadEntries(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"without keys", "with keys"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			busy := of(500)
			opts := func(n int) outbox.Options {
				o := of(n)
				if name == "with keys" {
					o.Key.Name = "k"
				}
				return o
			}
			busy.Key.Name = opts(0).Key.Name
			db := pgtest.New(t)
			snapshot := begin(t, db)
			exec(t, snapshot, `SET TRANSACTION ISOLATION LEVEL REPEATABLE READ`)
			exec(t, snapshot, `SELECT FROM outbox.queues`)
			leaveDeadEntries(t, db, busy, 75_000)

			wake, started := make(chan struct{}), make(chan outbox.ID, 1)
			config := quiet(wake)
			config.Queues = map[string]dispatcher.QueueConfig{engine.DefaultQueue: {Concurrency: 4}}
			start(t, db, handle(func(_ context.Context, job *outbox.Job[probe]) error { started <- job.ID; return nil }), config)
			wait := func(o outbox.Options) time.Duration {
				committed := enqueue(t, db, probe{}, o)
				at := time.Now()
				wake <- struct{}{}
				if got := receive(t, started, "a job to start"); got != committed {
					t.Fatalf("%s has started, want %s", got, committed)
				}
				return time.Since(at)
			}
			for range 3 { // afterwards the cost of a look at the front is known
				wait(busy)
			}
			var waits []time.Duration
			for n := range 15 {
				waits = append(waits, wait(opts(n)))
				wait(busy)
			}
			slices.Sort(waits)
			if median, most := waits[len(waits)/2], waits[len(waits)-1]; median > 500*time.Millisecond || most > 5*time.Second {
				t.Errorf("new tenants' jobs have waited for %s, the longest for %s", median, most)
			}
		})
	}
}

// leaveDeadEntries inserts jobs of a tenant that no transaction ever sees and deletes them: the index keeps an entry of
// each for as long as a snapshot is held.
func leaveDeadEntries(t *testing.T, db *pgxpool.Pool, o outbox.Options, n int) {
	t.Helper()
	tx := begin(t, db)
	exec(t, tx, `SET LOCAL session_replication_role = replica`) // these are no jobs: they leave no moves
	exec(t, tx, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, key)
		SELECT outbox.uuid_v7(), $1, 'dead', '{}', nullif($2, '') || '-' || n FROM generate_series(1, $3::integer) AS n`, o.Tenant, o.Key.Name, n)
	exec(t, tx, `DELETE FROM outbox.jobs WHERE kind = 'dead'`)
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}
