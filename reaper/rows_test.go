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

// An operation that was stopped and never resumed is forgotten at last, with the jobs that it was still to act on.
func TestAStoppedOperationIsForgotten(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{})
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		exec(t, db, `
			WITH operation AS (
				INSERT INTO outbox.operations (id, tenant_id, act, open_act, next_at, filter, per_second, matched, actor, reason, request_id, stopped_at, finished_at)
				SELECT outbox.uuid_v7(), $1, 'replay', 'cancel', 'infinity', '{}', 0, 1250, actor, '', '', now() - stopped::interval, now() - finished::interval
				FROM (VALUES ('stopped long ago', '91 days', NULL), ('stopped', '89 days', NULL), ('done', NULL, '89 days'),
					('done long ago', NULL, '91 days'), ('runs', NULL, NULL)) AS operation (actor, stopped, finished)
				RETURNING id, actor)
			INSERT INTO outbox.operation_jobs (operation_id, job_id, tenant_id, epoch)
			SELECT operation.id, gen_random_uuid(), $1, 0 FROM operation, generate_series(1, 1250) WHERE actor NOT LIKE 'done%'`, mustUUID(tenant))
	}

	trimPass(t, r)

	got := query[string](t, db, `
		SELECT string_agg(format('%s %s', actor, jobs), ', ' ORDER BY actor, tenant_id)
		FROM (SELECT actor, operations.tenant_id, count(job_id) AS jobs
			FROM outbox.operations LEFT JOIN outbox.operation_jobs ON operation_id = id GROUP BY 1, 2) AS operation`)
	if want := "done 0, done 0, runs 1250, runs 1250, stopped 1250, stopped 1250"; got != want {
		t.Errorf("operations and their jobs are: %s; want %s", got, want)
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.operation_jobs`); got != 4*1250 {
		t.Errorf("%d jobs are left to operations, want %d", got, 4*1250)
	}
	if got := value(t, r.metrics.trimmed["operations"]); got != 4+2*1250 {
		t.Errorf("rows of operations trimmed = %v, want %d", got, 4+2*1250)
	}
}
