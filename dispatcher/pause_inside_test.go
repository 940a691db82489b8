package dispatcher

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// The database hangs: each look at the queue ends without an answer. If every worker waited for one, a worker would
// start one job in 5 s.
func TestWorkersDoNotWaitForADatabaseThatHangs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	d := atRest(t, db, t.Output())
	check := d.queues[engine.DefaultQueue].workers.pause
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.queues`); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 3 {
		if !check.MayStart(began.Add(-time.Minute)) {
			t.Fatal("the job may not start")
		}
		time.Sleep(hintTimeout / 2)
	}
	if took := time.Since(began); took > 2*statementTimeout {
		t.Errorf("three jobs have started after %s", took)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}
