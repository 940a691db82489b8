package reaper

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// storeReports gives every job of the database progress, lines and a step.
func storeReports(t *testing.T, db *pgxpool.Pool, began time.Duration) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.progress (job_id, created_at, epoch, revision)
		SELECT id, now() - $1::interval, 1, 1 FROM (SELECT id FROM outbox.jobs UNION ALL SELECT id FROM outbox.history) AS job ON CONFLICT DO NOTHING`, began)
	exec(t, db, `INSERT INTO outbox.job_logs SELECT job_id, slot, 1, slot, now(), 'INFO', 'm' FROM outbox.progress, generate_series(0, 9) AS slot ON CONFLICT DO NOTHING`)
	exec(t, db, `INSERT INTO outbox.job_steps SELECT job_id, 's', 1, now(), '0', '1' FROM outbox.progress ON CONFLICT DO NOTHING`)
}

// What a job has reported goes when it goes itself, and not before: however long
// ago it began, while it is open or in the history.
func TestReportsAreTrimmedWithTheHistory(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	storeRunning(t, db, 50, time.Hour)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, status) SELECT gen_random_uuid(), 'test', '', 'dead' FROM generate_series(1, 150)`)
	storeClosed(t, db, 100, outbox.Succeeded, day)
	storeClosed(t, db, 150, outbox.Succeeded, 20*day)
	storeReports(t, db, 40*day)
	storeClosed(t, db, 300, outbox.Cancelled, 35*day)
	storeReports(t, db, 36*day)

	trimPass(t, r)

	kept := `SELECT count(*) FROM outbox.progress WHERE job_id IN (SELECT id FROM outbox.jobs UNION ALL SELECT id FROM outbox.history)`
	if got := query[int](t, db, kept); got != 300 {
		t.Errorf("jobs that are still there have %d reports, want 300", got)
	}
	for table, want := range map[string]int{"progress": 300, "job_logs": 3000, "job_steps": 300} {
		if got := query[int](t, db, `SELECT count(*) FROM outbox.`+table); got != want {
			t.Errorf("rows of %s left = %d, want %d", table, got, want)
		}
	}
	if got := value(t, r.metrics.trimmed["progress"]); got != 450 {
		t.Errorf("jobs trimmed = %v, want 450", got)
	}
}
