package reaper

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeClosed stores n jobs that were closed so long ago, and the partition for them.
func storeClosed(t testing.TB, db *pgxpool.Pool, n int, status outbox.Status, ago time.Duration) {
	t.Helper()
	from := outbox.Running
	if status == outbox.Dismissed {
		from = outbox.Dead
	}
	ensureDay(t, db, ago)
	exec(t, db, `
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, finished_at, epoch, status, closed_from, attempt,
			max_attempts, lost_leases, priority, queue, kind, payload, content_type)
		SELECT outbox.uuid_v7(), outbox.uuid_v7(), now(), now(), now() - $2::interval, 1, $3::text::outbox.job_status,
			$4::text::outbox.job_status, 1, 25, 0, 0, 'default', 'test', convert_to(repeat('x', 200), 'UTF8'), 'text/plain'
		FROM generate_series(1, $1)`, n, ago, string(status), string(from))
}

// ensureDay makes the history's partition of a day in the past, like ensure_days does
// for those to come.
func ensureDay(t testing.TB, db *pgxpool.Pool, ago time.Duration) (name string) {
	t.Helper()
	return ensureDayOf(t, db, "outbox.history", ago)
}

func ensureDayOf(t testing.TB, db *pgxpool.Pool, table string, ago time.Duration) (name string) {
	t.Helper()
	name = table + query[string](t, db, `SELECT to_char(now() AT TIME ZONE 'UTC' - $1::interval, '_YYYYMMDD')`, ago)
	if query[bool](t, db, `SELECT to_regclass($1) IS NULL`, name) {
		first := query[string](t, db, `SELECT to_char(now() AT TIME ZONE 'UTC' - $1::interval, 'YYYY-MM-DD')`, ago)
		exec(t, db, fmt.Sprintf(`CREATE TABLE %s PARTITION OF %s FOR VALUES FROM ('%s 00:00:00+00') TO (timestamptz '%[3]s 00:00:00+00' + interval '1 day')`, name, table, first))
	}
	return name
}

func countHistory(t testing.TB, db *pgxpool.Pool, status outbox.Status) int {
	t.Helper()
	return query[int](t, db, `SELECT count(*) FROM outbox.history WHERE status = $1::text::outbox.job_status`, string(status))
}

func TestEveryOutcomeHasItsOwnRetention(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{Keep: 14 * day, KeepByStatus: map[outbox.Status]time.Duration{
		outbox.Cancelled: 3 * day,
		outbox.Dismissed: 30 * day,
	}})
	r.config.KeepByStatus[outbox.Succeeded] = 2 * time.Hour // less than a Config may say: most are of today
	storeClosed(t, db, 20_000, outbox.Succeeded, 3*time.Hour)
	storeClosed(t, db, 5, outbox.Succeeded, time.Hour)
	storeClosed(t, db, 7, outbox.Succeeded, 5*day)
	storeClosed(t, db, 11, outbox.Cancelled, 2*day)
	storeClosed(t, db, 13, outbox.Cancelled, 5*day)
	storeClosed(t, db, 17, outbox.Expired, 13*day) // no rule of its own: 14 days
	storeClosed(t, db, 19, outbox.Expired, 20*day)
	storeClosed(t, db, 23, outbox.Dismissed, 20*day)
	for range 2 { // the second time it knows which days need no further look
		trimPass(t, r)
		for status, want := range map[outbox.Status]int{
			outbox.Succeeded: 5, outbox.Cancelled: 11, outbox.Expired: 17, outbox.Dismissed: 23,
		} {
			if got := countHistory(t, db, status); got != want {
				t.Errorf("%s jobs left = %d, want %d", status, got, want)
			}
		}
	}
	for status, want := range map[outbox.Status]float64{outbox.Succeeded: 20_007, outbox.Cancelled: 13, outbox.Expired: 19, outbox.Dismissed: 0} {
		if got := value(t, r.metrics.jobsTrimmed[string(status)]); got != want {
			t.Errorf("%s jobs trimmed = %v, want %v", status, got, want)
		}
	}
	if got := value(t, r.metrics.dropped); got != 1 {
		t.Errorf("days dropped = %v, want the one in which nothing had to stay", got)
	}
}

func TestADayThatNeedsNoFurtherLookIsNotRead(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: day}})
	storeClosed(t, db, 1, outbox.Succeeded, 5*day)
	storeClosed(t, db, 1, outbox.Cancelled, 5*day) // stays, and the day with it
	name := ensureDay(t, db, 5*day)
	trimPass(t, r)
	storeClosed(t, db, 1, outbox.Succeeded, 5*day) // as nothing but a test does
	trimPass(t, r)
	if got := countHistory(t, db, outbox.Succeeded); got != 1 {
		t.Errorf("%s was read again: %d rows left, want 1", name, got)
	}
	trimPass(t, newReaper(t, db, r.config)) // another process
	if got := countHistory(t, db, outbox.Succeeded); got != 0 {
		t.Errorf("rows left = %d, want 0", got)
	}
}

func TestAttemptsOfOpenJobsAreKept(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{Keep: 14 * day})
	const old, young = 15 * day, 13 * day
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, status) VALUES ('00000000-0000-7000-8000-000000000001', 'test', '', 'dead')`)
	for i, row := range []struct {
		job string
		age time.Duration
	}{{"1", old}, {"2", old}, {"2", young}} {
		job := "00000000-0000-7000-8000-00000000000" + row.job
		exec(t, db, `INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, finished_at, error_code, error_message)
			VALUES ($1::text::uuid, $2, 1, 'w', now(), now() - $3::interval, 'error', '')`, job, i, row.age)
	}
	exec(t, db, `INSERT INTO outbox.inbox VALUES ('c', 'old', now() - $1::interval), ('c', 'young', now() - $2::interval)`, old, young)
	exec(t, db, `INSERT INTO outbox.audit (at, actor, act) VALUES (now() - interval '366 days', 'ada', 'x'), (now() - interval '364 days', 'ada', 'x')`)

	trimPass(t, r)

	for table, want := range map[string]int{"attempts": 2, "inbox": 1, "audit": 1} {
		if got := query[int](t, db, `SELECT count(*) FROM outbox.`+table); got != want {
			t.Errorf("rows of %s left = %d, want %d", table, got, want)
		}
		if got := value(t, r.metrics.trimmed[table]); got != 1 {
			t.Errorf("rows of %s trimmed = %v, want 1", table, got)
		}
	}
}

// The attempts of a dead letter that is dismissed, or succeeds, long after them are kept as long as the job is.
func TestAttemptsOfJobsInTheHistoryAreKept(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{Keep: 14 * day})
	storeClosed(t, db, 1, outbox.Dismissed, 2*day) // of a tenant
	storeClosed(t, db, 1, outbox.Succeeded, 13*day)
	exec(t, db, `UPDATE outbox.history SET tenant_id = '00000000-0000-0000-0000-000000000001' WHERE status = 'succeeded'`)
	exec(t, db, `INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, finished_at, error_code, error_message)
		SELECT id, 1, 1, 'w', now(), now() - interval '40 days', 'error', ''
		FROM (SELECT id FROM outbox.history UNION ALL SELECT outbox.uuid_v7()) AS job`)

	trimPass(t, r)

	if got := query[int](t, db, `SELECT count(*) FROM outbox.attempts JOIN outbox.history ON history.id = job_id`); got != 2 {
		t.Errorf("attempts of jobs in the history left = %d, want 2", got)
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.attempts`); got != 2 {
		t.Errorf("attempts left = %d, want 2: those of a job that has gone are trimmed", got)
	}
	exec(t, db, `DELETE FROM outbox.history`) // as with its day
	trimPass(t, r)
	if got := query[int](t, db, `SELECT count(*) FROM outbox.attempts`); got != 0 {
		t.Errorf("attempts left = %d, want 0: their jobs have gone", got)
	}
}

// More rows than a batch with the same time, those of open jobs among them: the
// next batch begins behind the last row, not behind the last time.
func TestRowsThatStayDoNotStopTrimming(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{Keep: 14 * day})
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, status)
		SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 'test', '', 'dead' FROM generate_series(1, 600) i`)
	exec(t, db, `INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, finished_at, error_code, error_message)
		SELECT ('00000000-0000-7000-8000-' || lpad(i::text, 12, '0'))::uuid, 1, 1, 'w', now(), now() - interval '20 days', 'error', '' FROM generate_series(1, 1250) i`)
	exec(t, db, `INSERT INTO outbox.inbox SELECT 'c', i::text, now() - interval '20 days' FROM generate_series(1, 1250) i`)
	exec(t, db, `INSERT INTO outbox.audit (at, actor, act) SELECT now() - CASE WHEN i <= 1250 THEN interval '2 years' ELSE interval '0' END, 'ada', 'x' FROM generate_series(1, 1260) i`)

	trimPass(t, r)

	for table, want := range map[string]int{"attempts": 600, "inbox": 0, "audit": 10} {
		if got := query[int](t, db, `SELECT count(*) FROM outbox.`+table); got != want {
			t.Errorf("rows of %s left = %d, want %d", table, got, want)
		}
	}
	if check, err := operator.New(db).VerifyAudit(t.Context(), operator.AuditHead{}); err != nil || check.Broken != 0 || check.Acts != 10 || check.Trimmed != 1250 {
		t.Errorf("the audit that was trimmed: %+v, %v; want 10 acts behind link 1250, nothing broken", check, err)
	}
}

func TestTwoReapersAtOnceDoNotTripOverEachOther(t *testing.T) {
	t.Parallel()
	const many = 6000 // more than a statement takes
	config := Config{Keep: 14 * day, KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: day}}
	first, db := newRig(t, config)
	second := newReaper(t, db, config)
	storeRunning(t, db, many, -time.Second)
	storeClosed(t, db, many, outbox.Succeeded, 5*day)
	storeClosed(t, db, 10, outbox.Succeeded, 20*day)
	exec(t, db, `INSERT INTO outbox.inbox SELECT 'c', i::text, now() - interval '20 days' - i * interval '1 us' FROM generate_series(1, $1::integer) i`, many)

	var both sync.WaitGroup
	for _, r := range []*Reaper{first, second} {
		both.Go(func() {
			for _, chore := range []func(context.Context) (time.Duration, error){r.expirer.expire, r.days.ensure, r.trimmer.trim} {
				if _, err := chore(t.Context()); err != nil {
					t.Errorf("a chore beside another reaper's: %v", err)
				}
			}
		})
	}
	both.Wait()
	trimPass(t, first)

	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE status = 'retrying' AND epoch = 2 AND lost_leases = 1`); got != many {
		t.Errorf("jobs taken once = %d, want %d", got, many)
	}
	if got := value(t, first.metrics.expired) + value(t, second.metrics.expired); got != many {
		t.Errorf("leases expired by both = %v, want %d", got, many)
	}
	if got := countHistory(t, db, outbox.Succeeded) + query[int](t, db, `SELECT count(*) FROM outbox.inbox`); got != 0 {
		t.Errorf("rows left = %d, want 0", got)
	}
}
