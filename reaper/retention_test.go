package reaper

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

func TestTheDefaultsAreKept(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config Config
		want   map[outbox.Status]time.Duration
	}{
		"nothing said":    {Config{}, map[outbox.Status]time.Duration{outbox.Succeeded: 14 * day, outbox.Cancelled: 30 * day, outbox.Dismissed: 30 * day, outbox.Failed: 90 * day, outbox.Dead: 90 * day}},
		"one for all":     {Config{Keep: 7 * day}, map[outbox.Status]time.Duration{outbox.Succeeded: 7 * day, outbox.Cancelled: 7 * day, outbox.Failed: 90 * day}},
		"one of its own":  {Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Dead: day}}, map[outbox.Status]time.Duration{outbox.Succeeded: 14 * day, outbox.Failed: 90 * day, outbox.Dead: day}},
		"none at all":     {Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: 0}}, map[outbox.Status]time.Duration{outbox.Succeeded: 0}},
		"a queue's is no": {Config{KeepByQueue: map[string]map[outbox.Status]time.Duration{"q": {outbox.Succeeded: day}}}, map[outbox.Status]time.Duration{outbox.Succeeded: 14 * day}},
	} {
		config := c.config.withDefaults()
		for status, want := range c.want {
			if got := config.retention(status); got != want {
				t.Errorf("%s: %s is kept for %s, want %s", name, status, got, want)
			}
		}
	}
	config := Config{Keep: day, KeepByQueue: map[string]map[outbox.Status]time.Duration{"q": {outbox.Expired: 5 * day, outbox.Dead: 400 * day}}}
	if got := config.withDefaults().longestRetention(); got != 5*day {
		t.Errorf("the longest retention of the history = %s, want the queue's 5 days", got)
	}
}

// inQueue moves what lies in the default queue to another.
func inQueue(t *testing.T, db *pgxpool.Pool, queue string) {
	t.Helper()
	exec(t, db, `UPDATE outbox.history SET queue = $1 WHERE queue = 'default'`, queue)
}

func TestAQueueHasItsOwnRetention(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{
		Keep:        10 * day,
		KeepByQueue: map[string]map[outbox.Status]time.Duration{"short": {outbox.Succeeded: day}, "long": {outbox.Succeeded: 20 * day}},
	})
	for _, queue := range []string{"short", "long", "other"} {
		for _, age := range []time.Duration{2 * day, 12 * day, 22 * day} {
			storeClosed(t, db, 1, outbox.Succeeded, age)
			storeClosed(t, db, 1, outbox.Cancelled, age)
		}
		inQueue(t, db, queue)
	}
	for range 2 {
		trimPass(t, r)
		for queue, want := range map[string]string{"short": "cancelled 2", "long": "cancelled 2, succeeded 12, succeeded 2", "other": "cancelled 2, succeeded 2"} {
			got := query[string](t, db, `
				SELECT string_agg(status || ' ' || extract(day FROM now() - finished_at), ', ' ORDER BY status::text, finished_at)
				FROM outbox.history WHERE queue = $1`, queue)
			if got != want {
				t.Errorf("left of queue %s: %s, want %s", queue, got, want)
			}
		}
	}
	if got := value(t, r.metrics.jobsTrimmed["succeeded"]) + value(t, r.metrics.jobsTrimmed["cancelled"]); got != 12 {
		t.Errorf("jobs trimmed = %v, want 12", got)
	}
}

// What is not kept goes at the next pass, of today, too, and if nothing is kept.
func TestWhatIsNotKeptGoesAtOnce(t *testing.T) {
	t.Parallel()
	none := map[outbox.Status]time.Duration{}
	for _, status := range closedStatuses() {
		none[status] = 0
	}
	r, db := newRig(t, Config{KeepByStatus: none})
	storeClosed(t, db, 3, outbox.Succeeded, 0)
	storeClosed(t, db, 2, outbox.Cancelled, 0)
	trimPass(t, r)
	if got := query[int](t, db, `SELECT count(*) FROM outbox.history`); got != 0 {
		t.Errorf("jobs left = %d, want none", got)
	}
}

// A day with nothing left to keep is dropped whole, however young it is; one with a
// single job to keep is not.
func TestADayIsDroppedAsSoonAsNothingHasToStay(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{}) // 14 days for what succeeded, 30 for others
	storeClosed(t, db, 3000, outbox.Succeeded, 16*day)
	storeClosed(t, db, 3000, outbox.Succeeded, 18*day)
	storeClosed(t, db, 1, outbox.Cancelled, 18*day)
	trimPass(t, r)
	if got := value(t, r.metrics.dropped); got != 1 {
		t.Errorf("days dropped = %v, want 1", got)
	}
	if got := query[int](t, db, `SELECT count(*) FROM outbox.history`); got != 1 {
		t.Errorf("jobs left = %d, want the one that was cancelled", got)
	}
	if got := value(t, r.metrics.jobsTrimmed["succeeded"]); got != 6000 {
		t.Errorf("jobs trimmed = %v, want 6000", got)
	}
}

// giveKey makes an idempotency key for each job that has none yet.
func giveKeys(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id)
		SELECT tenant_id, kind, id::text, id FROM outbox.history
		UNION ALL
		SELECT tenant_id, kind, id::text, id FROM outbox.jobs`)
}

func TestAnIdempotencyKeyLivesAsLongAsItsJob(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: 2 * day}})
	storeClosed(t, db, 10, outbox.Succeeded, day)     // stay
	storeClosed(t, db, 20, outbox.Succeeded, 6*day)   // are deleted, for
	storeClosed(t, db, 1, outbox.Cancelled, 6*day)    // this one stays
	storeClosed(t, db, 40, outbox.Succeeded, 9*day)   // a day that is dropped
	storeClosed(t, db, 80, outbox.Cancelled, 40*day)  // and one beyond all
	storeRunning(t, db, 5, time.Hour)                 // stay
	storeDeadLetters(t, db, 3, outbox.Dead, 100*day)  // are removed
	storeDeadLetters(t, db, 7, outbox.Failed, 80*day) // stay
	giveKeys(t, db)
	exec(t, db, `UPDATE outbox.idempotency_keys SET created_at = now() - interval '1 year'`) // its age does not matter

	trimPass(t, r)

	if got := query[int](t, db, `SELECT count(*) FROM outbox.idempotency_keys`); got != 10+1+5+7 {
		t.Errorf("keys left = %d, want 23", got)
	}
	orphans := query[int](t, db, `
		SELECT count(*) FROM outbox.idempotency_keys AS k
		WHERE NOT EXISTS (SELECT FROM outbox.jobs WHERE id = k.job_id) AND NOT EXISTS (SELECT FROM outbox.history WHERE id = k.job_id)`)
	if orphans != 0 {
		t.Errorf("keys without a job = %d, want 0", orphans)
	}
	if got := value(t, r.metrics.trimmed["idempotency_keys"]); got != 20+40+80+3 {
		t.Errorf("keys freed = %v, want 143", got)
	}
}

func storeDeadLetters(t *testing.T, db *pgxpool.Pool, n int, status outbox.Status, ago time.Duration) {
	t.Helper()
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, epoch, created_at, failed_at)
		SELECT outbox.uuid_v7(), 'test', '{}', $2::text::outbox.job_status, 3, now() - interval '2 years', now() - $3::interval
		FROM generate_series(1, $1)`, n, string(status), ago)
}

func TestDeadLettersAreRemovedAtLast(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{
		KeepByStatus: map[outbox.Status]time.Duration{outbox.Failed: 10 * day},
		KeepByQueue:  map[string]map[outbox.Status]time.Duration{"mail": {outbox.Dead: day}},
	})
	storeDeadLetters(t, db, 6000, outbox.Dead, 89*day) // stay, more than a batch of them
	storeDeadLetters(t, db, 50, outbox.Dead, 91*day)
	storeDeadLetters(t, db, 20, outbox.Failed, 11*day)
	storeDeadLetters(t, db, 4, outbox.Failed, 9*day) // stay
	exec(t, db, `UPDATE outbox.jobs SET queue = 'mail' WHERE id IN (SELECT id FROM outbox.jobs WHERE failed_at > now() - interval '90 days' AND status = 'dead' LIMIT 3)`)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, status, created_at) SELECT outbox.uuid_v7(), 'test', '{}', 'retrying', now() - interval '2 years'`)
	exec(t, db, `INSERT INTO outbox.jobs (id, kind, queue, payload, status, created_at, key, ordered, on_death) -- those that hold up a key stay
		SELECT outbox.uuid_v7(), 'relay:s', 'relay:s', '{}', 'dead', now() - interval '2 years', key, true, on_death
		FROM (VALUES ('held', NULL), ('parked', 'park'), ('skipped', 'skip')) AS refused (key, on_death)`)

	trimPass(t, r)

	if got := query[int](t, db, `SELECT count(*) FROM outbox.jobs`); got != 6000-3+4+1+2 {
		t.Errorf("jobs left = %d, want 6004", got)
	}
	if got := query[string](t, db, `SELECT string_agg(key, ' ' ORDER BY key) FROM outbox.jobs WHERE key IS NOT NULL`); got != "held parked" {
		t.Errorf("messages of a sink that are left: %s, want those that hold up their keys", got)
	}
	for status, want := range map[outbox.Status]float64{outbox.Dead: 54, outbox.Failed: 20} {
		if got := value(t, r.metrics.jobsTrimmed[string(status)]); got != want {
			t.Errorf("%s jobs removed = %v, want %v", status, got, want)
		}
	}
}

// A dead head that holds up its line stays beyond its retention: without it the jobs behind would run, although nobody
// has dealt with it.
func TestADeadHeadStaysWhileJobsWaitBehindIt(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		r, db := newRig(t, Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Dead: 0}})
		exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key) SELECT $1, 'default', unnest('{held,parks,skips,alone,others}'::text[])`, mustUUID(tenant))
		exec(t, db, `
			INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, created_at, failed_at, key, ordered, line_position, on_death, park_after)
			SELECT outbox.uuid_v7(), $1, 'test', '{}', status::outbox.job_status, now() - interval '2 years',
				CASE status WHEN 'dead' THEN now() - interval '1 year' END, key, true, line_position, on_death, park_after::interval
			FROM (VALUES ('held', 'dead', 1, NULL, NULL), ('held', 'blocked', 2, NULL, NULL),
				('parks', 'dead', 1, 'park', '2 years'), ('parks', 'blocked', 2, NULL, NULL),
				('skips', 'dead', 1, 'skip', NULL), ('skips', 'blocked', 2, NULL, NULL),
				('alone', 'dead', 1, NULL, NULL), ('alone', 'dead', 2, NULL, NULL)) AS job (key, status, line_position, on_death, park_after)`, mustUUID(tenant))
		exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, key, ordered, line_position) -- another tenant's
			VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 'test', '{}', 'blocked', 'alone', true, 3)`)

		trimPass(t, r)
		sweep(t, r)

		got := query[string](t, db, `SELECT string_agg(key || ' ' || status, ', ' ORDER BY key, line_position) FROM outbox.jobs WHERE tenant_id = $1`, mustUUID(tenant))
		if want := "held dead, held blocked, parks dead, parks blocked, skips pending"; got != want {
			t.Errorf("left are: %s; want %s", got, want)
		}
	}
}

// A dead letter that has parked its key when its lease was lost stays beyond its retention while jobs wait for the key:
// unblocking the key is to retry it first. The one that the key names as the reason stays even if none waits, or the
// next job would be set aside, and nobody would know why.
func TestALetterThatParksItsKeyStaysWhileJobsWaitForIt(t *testing.T) {
	t.Parallel()
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		r, db := newRig(t, Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Dead: 0}})
		exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at)
			SELECT $1, 'default', key, CASE WHEN key <> 'unblocked' THEN now() END
			FROM unnest('{waits,line,runs,alone,unblocked,other,retries}'::text[]) AS key`, mustUUID(tenant))
		exec(t, db, `
			INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, created_at, failed_at, key, ordered, line_position, on_lapse, last_error_code, max_active, attempt, epoch, lease_owner, lease_expires_at, started_at)
			SELECT outbox.uuid_v7(), $1, 'test', '{}', status::outbox.job_status, now() - interval '2 years',
				CASE status WHEN 'dead' THEN now() - interval '1 year' END, key, ordered, line_position, CASE WHEN key <> 'retries' THEN 'block' END, code, CASE WHEN ordered THEN NULL ELSE 2 END, 1, 1,
				CASE status WHEN 'running' THEN 'w' END, CASE status WHEN 'running' THEN now() + interval '1 hour' END, now()
			FROM (VALUES ('waits', 'dead', NULL::boolean, NULL::bigint, 'lease_lost'), ('waits', 'blocked', NULL, NULL, NULL),
				('line', 'dead', NULL, NULL, 'lease_lost'), ('line', 'pending', true, 1, NULL),
				('runs', 'dead', NULL, NULL, 'lease_lost'), ('runs', 'running', NULL, NULL, NULL),
				('alone', 'dead', NULL, NULL, 'lease_lost'), ('alone', 'dead', NULL, NULL, 'lease_lost'),
				('unblocked', 'dead', NULL, NULL, 'lease_lost'), ('unblocked', 'pending', NULL, NULL, NULL),
				('retries', 'dead', NULL, NULL, 'lease_lost'), ('retries', 'blocked', NULL, NULL, NULL),
				('other', 'dead', NULL, NULL, 'error'), ('other', 'blocked', NULL, NULL, NULL)) AS job (key, status, ordered, line_position, code)`, mustUUID(tenant))
		exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, created_at, failed_at, key, attempt, epoch)
			SELECT outbox.uuid_v7(), $1, 'test', '{}', 'dead', now() - interval '2 years', now() - interval '1 year', 'named', 1, 1 FROM generate_series(1, 2)`, mustUUID(tenant))
		exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at, parked_for) SELECT $1, 'default', 'named', now(), max(id::text)::uuid FROM outbox.jobs WHERE key = 'named'`, mustUUID(tenant))
		exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, key) -- another tenant's
			VALUES (outbox.uuid_v7(), outbox.uuid_v7(), 'test', '{}', 'blocked', 'alone')`)

		trimPass(t, r)

		got := query[string](t, db, `SELECT coalesce(string_agg(key, ' ' ORDER BY key), '') FROM outbox.jobs WHERE tenant_id = $1 AND status = 'dead'`, mustUUID(tenant))
		if want := "line named waits"; got != want {
			t.Errorf("letters of these keys are left: %s; want %s", got, want)
		}
	}
}

// Where a publication has a table, as one FOR ALL TABLES does, the server refuses to delete rows that nothing names.
func TestTrimmingGoesOnUnderAPublication(t *testing.T) {
	t.Parallel()
	r, db := newRig(t, Config{KeepByStatus: map[outbox.Status]time.Duration{outbox.Succeeded: 0}})
	exec(t, db, `CREATE PUBLICATION everything FOR ALL TABLES`)
	exec(t, db, `
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, finished_at, epoch, status, closed_from, attempt,
			max_attempts, lost_leases, priority, queue, kind, payload, content_type)
		SELECT outbox.uuid_v7(), outbox.uuid_v7(), now(), now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'default', 'test', '', 'text/plain'`)
	exec(t, db, `INSERT INTO outbox.measured VALUES (now() - interval '15 days', now() - interval '15 days', true)`)
	exec(t, db, `INSERT INTO outbox.measures SELECT at, NULL, 'q', 'k', 0, 0, 0, 0, 0, 0, 0, '{}' FROM outbox.measured`)
	exec(t, db, `INSERT INTO outbox.measures_hours SELECT * FROM outbox.measures`)
	trimPass(t, r)
	if err := r.trimmer.rows.measures(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := rows(t, db, `SELECT 'job' FROM outbox.history UNION ALL SELECT 'minute' FROM outbox.measures UNION ALL SELECT 'hour' FROM outbox.measures_hours`); len(got) > 0 {
		t.Errorf("left %v, want nothing", got)
	}
}
