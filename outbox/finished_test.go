package outbox

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// A statement that closes a job may have waited for the transaction that had
// the job before:
//
//	cancel   begins, waits for the row                                  closes it
//	worker   has the row        starts it, gives it back, commits
//
// The job ends when it is closed, not when the statement began.
func TestAJobNeverEndsBeforeItStarted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for name, opts := range map[string]Options{
		"plain, root":   {},
		"plain, tenant": {Tenant: NewID()},
		"keyed, root":   {Key: KeyRules{Name: "k"}},
		"keyed, tenant": {Key: KeyRules{Name: "k", Ordered: true}, Tenant: NewID()},
	} {
		id, err := Enqueue(t.Context(), db, greet{"ada"}, opts)
		if err != nil {
			t.Fatal(err)
		}
		worker := begin(t, db, pgx.ReadCommitted)
		exec(t, worker, `SELECT FROM outbox.jobs WHERE id = $1 FOR UPDATE`, id)
		cancelled := make(chan error, 1)
		go func() {
			_, err := db.Exec(context.WithoutCancel(t.Context()), `SELECT outbox.cancel($1)`, id)
			cancelled <- err
		}()
		pgtest.AwaitLocks(t, db, 1)
		exec(t, worker, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = epoch + 1, lease_owner = 'w', lease_expires_at = now() + interval '1 hour',
			started_at = statement_timestamp() WHERE id = $1`, id)
		exec(t, worker, `UPDATE outbox.jobs SET status = 'pending', attempt = 0, epoch = epoch + 1, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, id)
		if err := worker.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := <-cancelled; err != nil {
			t.Fatal(err)
		}
		if !ask[bool](t, db, `SELECT finished_at > started_at FROM outbox.history WHERE id = $1 AND status = 'cancelled'`, id) {
			t.Errorf("%s: it ended before it started", name)
		}
	}
}
