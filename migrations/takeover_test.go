package migrations_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// ofOldChain returns a database as the 24 migrations made it that there were before they were squashed.
func ofOldChain(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pgtest.New(t) // the roles are there
	db := pgtest.NewEmpty(t)
	dump, err := os.ReadFile("testdata/chain24.sql")
	if err != nil {
		t.Fatal(err)
	}
	conn, err := pgx.ConnectConfig(t.Context(), db.Config().ConnConfig) // its settings go with it
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.PgConn().Exec(t.Context(), string(dump)).ReadAll(); err != nil {
		t.Fatal(err)
	}
	return db
}

// life is rows of every table, and jobs in every state.
const life = `
	INSERT INTO outbox.jobs (id, kind, payload, status, attempt, epoch, lease_owner, lease_expires_at, started_at, failed_at, error_fingerprint, run_at, backoff, headers)
	SELECT outbox.uuid_v7(), 'plain', '{}', s, 1, 1, CASE s WHEN 'running' THEN 'w' END, CASE s WHEN 'running' THEN now() + interval '1 hour' END, now(),
	    CASE WHEN s IN ('failed', 'dead') THEN now() END, CASE WHEN s IN ('failed', 'dead') THEN 'f' END, now() - interval '1 minute', '{00:00:01}', '{"a": "b"}'
	FROM unnest('{created,pending,blocked,running,retrying,failed,dead}'::outbox.job_status[]) AS s;
	INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, result)
	SELECT outbox.uuid_v7(), '00000000-0000-0000-0000-000000000001', now(), now(), now(), 3, s,
	    (CASE s WHEN 'skipped' THEN 'pending' WHEN 'dismissed' THEN 'dead' ELSE 'running' END)::outbox.job_status, 1, 25, 0, 0, 'default', 'plain', '\x00ff', 'application/octet-stream', '1'
	FROM unnest('{succeeded,cancelled,expired,skipped,stale,dismissed}'::outbox.job_status[]) AS s;
	SELECT outbox.enqueue('keyed', key => 'limited', max_active => 2) FROM generate_series(1, 4);
	SELECT outbox.enqueue('keyed', key => 'line', ordered => true, on_death => 'park', tenant_id => 'aaaaaaaa-0000-0000-0000-000000000001') FROM generate_series(1, 3);
	SELECT FROM outbox.claim_keyed('w', '1 hour', '{0}', ARRAY['-infinity'::timestamptz], ARRAY['00000000-0000-0000-0000-000000000000'::uuid], 'default', '{keyed}', '{}', 10, 100);
	SELECT outbox.enqueue('plain', idempotency_key => 'once', hold => true, delay => '1 hour');
	SELECT outbox.cancel(outbox.enqueue('plain'), 'ada') FROM generate_series(1, 3);
	INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message) SELECT id, 1, 1, 'w', now(), 'code', 'message' FROM outbox.jobs;
	INSERT INTO outbox.progress (job_id, epoch, revision, current, total) SELECT id, 1, 1, 1, 2 FROM outbox.jobs;
	INSERT INTO outbox.job_logs (job_id, slot, epoch, line, logged_at, level, message) SELECT id, 0, 1, 1, now(), 'INFO', 'm' FROM outbox.jobs;
	INSERT INTO outbox.job_steps (job_id, name, epoch, took, result) SELECT id, 's', 1, '1 s', '1' FROM outbox.jobs;
	INSERT INTO outbox.schedules (name, every, kind, payload, next_at, hold, deadline) VALUES ('hourly', '1 hour', 'plain', '{}', now() + interval '1 hour', true, '5 minutes');
	INSERT INTO outbox.queues (queue, paused_at, max_running, rate, rate_interval) VALUES ('mail', now(), 3, 10, '1 s');
	INSERT INTO outbox.queue_usage (queue, running) VALUES ('mail', ARRAY[outbox.uuid_v7()]);
	INSERT INTO outbox.tokens (id, secret_hash, name, tenant_id, all_tenants, capabilities, created_by) VALUES ('t', sha256('s'), 'n', '00000000-0000-0000-0000-000000000001', true, '{jobs:read}', 'ada');
	INSERT INTO outbox.death_hooks (kind, hook_kind, registered_by) VALUES ('hooked', 'hook', 'w');
	INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing) VALUES ('w', 'v', '{default}', '{1}', '{plain}', true);
	INSERT INTO outbox.inbox (consumer, message_id) VALUES ('c', 'm');`

func TestAnOlderDatabaseIsTakenOver(t *testing.T) {
	t.Parallel()
	db := ofOldChain(t)
	run(t, db, life)
	before := contents(t, db, tables(t, db))
	for table, rows := range before {
		if rows == "" && table != "outbox.freed_keys" {
			t.Errorf("%s has no row: this test should make one", table)
		}
	}
	state, err := migrations.Look(t.Context(), db)
	if err != nil || state.Condition != migrations.Behind {
		t.Fatalf("before: %s, %v; want it behind", state, err)
	}

	up(t, db)
	if state, err := migrations.Look(t.Context(), db); err != nil || state.Condition != migrations.Current {
		t.Errorf("after: %s, %v; want this build's", state, err)
	}
	if diff := cmp.Diff(before, contents(t, db, slices.Collect(maps.Keys(before)))); diff != "" {
		t.Errorf("rows (-before +after):\n%s", diff)
	}
	fresh := pgtest.New(t)
	if diff := cmp.Diff(schema(t, fresh, outline+bodies), schema(t, db, outline+bodies)); diff != "" {
		t.Errorf("schema (-made now +taken over):\n%s", diff)
	}
	if diff := cmp.Diff(schema(t, fresh, privileges), schema(t, db, privileges)); diff != "" {
		t.Errorf("privileges (-made now +taken over):\n%s", diff)
	}
	up(t, db)
	if diff := cmp.Diff(before, contents(t, db, slices.Collect(maps.Keys(before)))); diff != "" {
		t.Errorf("rows (-before +after up once more):\n%s", diff)
	}

	// It works: what waited can be claimed, closed and counted, and the audit's chain goes on.
	run(t, db, `SELECT outbox.enqueue('plain'); SELECT outbox.cancel(id, 'bob') FROM outbox.jobs WHERE kind = 'plain' AND status IN ('created', 'pending', 'blocked', 'retrying', 'running');
		UPDATE outbox.jobs SET status = 'pending', epoch = epoch + 1, attempt = 0 WHERE status = 'dead'; SELECT outbox.secure(); SELECT outbox.ensure_days(20)`)
	for want, query := range map[string]string{
		"two of the limited key and one of the line run": `SELECT count(*) FILTER (WHERE key = 'limited') = 2 AND count(*) FILTER (WHERE key = 'line') = 1 FROM outbox.jobs WHERE status = 'running' AND key IS NOT NULL`,
		"every link of the audit is right": `SELECT count(*) > 3 AND bool_and(hash = outbox.audit_hash(previous, seq, entry))
			FROM (SELECT hash, seq, audit_id, lag(hash) OVER (ORDER BY seq) AS previous FROM outbox.audit_chain) AS link JOIN outbox.audit AS entry ON entry.id = link.audit_id`,
		"the first job of its key is still the only one": `SELECT outbox.enqueue('plain', idempotency_key => 'once') = job_id FROM outbox.idempotency_keys`,
	} {
		var holds bool
		if err := db.QueryRow(t.Context(), query).Scan(&holds); err != nil || !holds {
			t.Errorf("%s: %t, %v; want true", want, holds, err)
		}
	}
}

// claim_keyed has returned a job's columns by themselves, which CREATE OR REPLACE does not change.
func TestUpChangesWhatAClaimReturns(t *testing.T) {
	t.Parallel()
	db, fresh := pgtest.New(t), pgtest.New(t)
	run(t, db, `DROP FUNCTION outbox.claim_keyed;
		CREATE FUNCTION outbox.claim_keyed(worker text, lease_ttl interval, tenant_ids uuid[], quotas integer[], reaches integer[], firsts integer[],
			lasts integer[], priorities smallint[], from_run_at timestamptz[], from_id uuid[], of_queue text, kinds text[], also uuid[], max_jobs integer)
		RETURNS TABLE (id uuid, tenant_id uuid, kind text) LANGUAGE sql AS 'SELECT NULL::uuid, NULL::uuid, NULL';
		UPDATE outbox.schema_files SET checksum = sha256('x') WHERE name = 'functions/claim_keyed.sql'`)
	up(t, db)
	for _, query := range []string{outline + bodies, privileges} {
		if diff := cmp.Diff(schema(t, fresh, query), schema(t, db, query)); diff != "" {
			t.Errorf("(-made now +after up):\n%s", diff)
		}
	}
}

func TestADatabaseOfFewerMigrationsIsRefused(t *testing.T) {
	t.Parallel()
	for _, lacks := range []string{`version_id = 24`, `version_id = 7`, `version_id > 2`} {
		db := ofOldChain(t)
		run(t, db, `DELETE FROM outbox.schema_version WHERE `+lacks)
		before := schema(t, db, outline+bodies)
		if err := migrate.Up(t.Context(), db); err == nil || !strings.Contains(err.Error(), "commit f5c5a88") {
			t.Errorf("without %s: %v, want an error that says which build to run first", lacks, err)
		}
		if diff := cmp.Diff(before, schema(t, db, outline+bodies)); diff != "" {
			t.Errorf("without %s (-before +after):\n%s", lacks, diff)
		}
	}
}

// tables returns the tables of the schema but the migrations' own record.
func tables(t *testing.T, db *pgxpool.Pool) []string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT oid::regclass::text FROM pg_class
		WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition AND relname NOT LIKE 'schema\_%'`)
	if err != nil {
		t.Fatal(err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// contents returns every row of tables, by table.
func contents(t *testing.T, db *pgxpool.Pool, tables []string) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, table := range tables {
		var rows string
		if err := db.QueryRow(t.Context(), `SELECT coalesce(string_agg(jsonb_strip_nulls(to_jsonb(x))::text, E'\n' ORDER BY jsonb_strip_nulls(to_jsonb(x))::text), '') FROM `+table+` AS x`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		all[table] = rows
	}
	return all
}

// Times that were refused later on, because JSON does not have them, become the first or
// the last that it has.
func TestFarTimesOfAnOlderDatabaseAreTakenOver(t *testing.T) {
	t.Parallel()
	db := ofOldChain(t)
	run(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, run_at, created_at, deadline) VALUES
			(gen_random_uuid(), 'k', '1', '20000-01-01', '4000-01-01 BC', '290000-01-01'), (gen_random_uuid(), 'k', '1', '2030-01-01Z', '2026-01-01Z', NULL);
		INSERT INTO outbox.schedules (name, every, kind, payload, next_at, since) VALUES ('far', '1 h', 'k', '1', '20000-01-01', '4000-01-01 BC')`)
	if err := migrate.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var got []string
	rows, _ := db.Query(t.Context(), `
		SELECT concat_ws(' ', run_at AT TIME ZONE 'UTC', created_at AT TIME ZONE 'UTC', deadline AT TIME ZONE 'UTC') FROM outbox.jobs
		UNION ALL SELECT concat_ws(' ', next_at AT TIME ZONE 'UTC', since AT TIME ZONE 'UTC') FROM outbox.schedules ORDER BY 1`)
	got, err := pgx.CollectRows(rows, pgx.RowTo[string])
	want := []string{
		"2030-01-01 00:00:00 2026-01-01 00:00:00", "9999-12-31 23:59:59.999999 0001-01-01 00:00:00",
		"9999-12-31 23:59:59.999999 0001-01-01 00:00:00 9999-12-31 23:59:59.999999",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}
