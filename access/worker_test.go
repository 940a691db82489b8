package access_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
	"github.com/posthaste-dev/posthaste/outbox"
)

// oldDay is a partition that the reaper drops, with a job in it.
const oldDay = `
	CREATE TABLE outbox.history_old (LIKE outbox.history INCLUDING DEFAULTS INCLUDING CONSTRAINTS);
	ALTER TABLE outbox.history ATTACH PARTITION outbox.history_old FOR VALUES FROM ('2001-01-01 00:00:00+00') TO ('2001-01-02 00:00:00+00');
	INSERT INTO outbox.history (id, tenant_id, run_at, created_at, finished_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
	VALUES (gen_random_uuid(), gen_random_uuid(), now(), now(), '2001-01-01 12:00:00+00', 1, 'succeeded', 'running', 1, 1, 0, 0, 'q', 'k', '', '');`

// runEngine has a whole process work as the role that pool connects as: all that a
// job can go through, a lapsed lease, and a day of the history to be dropped.
// Everything must have happened when it returns.
func runEngine(t *testing.T, owner, pool *pgxpool.Pool) {
	t.Helper()
	tenant := outbox.NewID()
	var mux dispatcher.Mux
	mux.HandleRaw("succeeds", func(context.Context, *outbox.Claimed) error { return nil })
	mux.HandleRaw("completes", func(ctx context.Context, job *outbox.Claimed) error {
		return job.Tx(ctx, func(tx pgx.Tx) error {
			if got := ask[string](t, tx, `SELECT current_setting('app.tenant_id')`); got != tenant.String() {
				t.Errorf("the job's transaction is of tenant %s, want %s", got, tenant)
			}
			return errors.Join(job.Guard(ctx, tx), job.Complete(ctx, tx))
		})
	})
	mux.HandleRaw("retries", func(_ context.Context, job *outbox.Claimed) error {
		if job.Attempt == 1 && job.LostLeases == 0 {
			return dispatcher.RetryAfter(time.Millisecond, errors.New("not yet"))
		}
		return nil
	})
	mux.HandleRaw("fails", func(context.Context, *outbox.Claimed) error { return dispatcher.Discard(errors.New("never")) })

	for _, kind := range mux.Kinds() {
		if _, err := outbox.Enqueue(t.Context(), owner, outbox.Raw{KindName: kind, Payload: []byte(`{}`)}, outbox.Options{Tenant: tenant, IdempotencyKey: kind}); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, owner, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status, epoch, attempt, started_at, lease_owner, lease_expires_at)
		VALUES (gen_random_uuid(), $1, 'succeeds', '{}', 'running', 1, 1, now(), 'dead', now())`, tenant)

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, &mux, app.Config{Pool: pool}) }()
	deadline := time.Now().Add(3 * time.Minute)
	const done = `SELECT (SELECT count(*) FROM outbox.history WHERE tenant_id = $1) = 4 AND to_regclass('outbox.history_old') IS NULL
		AND (SELECT count(*) FROM outbox.jobs WHERE status = 'failed') = 1`
	for !ask[bool](t, owner, done, tenant) {
		if time.Now().After(deadline) {
			t.Errorf("after three minutes there is still: %s", ask[string](t, owner, `SELECT concat_ws(', ', to_regclass('outbox.history_old')::text, (SELECT string_agg(concat_ws(' ', kind, status, last_error_message), ', ') FROM outbox.jobs))`))
			break
		}
		time.Sleep(10 * time.Millisecond) // the condition is in the database
	}
	stop()
	if err := <-ended; err != nil {
		t.Errorf("stop: %v", err)
	}
	codes := ask[string](t, owner, `SELECT string_agg(error_code, ',' ORDER BY error_code) FROM outbox.attempts WHERE tenant_id = $1`, tenant)
	if n := ask[int](t, owner, `SELECT count(*) FROM outbox.attempts WHERE tenant_id IS NULL`); n != 0 || codes != "error,error,lease_lost" {
		t.Errorf("the tenant's failed attempts are %q, and %d are nobody's; want one that failed, one that was retried, and a lost lease", codes, n)
	}
}

func TestAWorkerRunsTheWholeEngine(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, oldDay)
	worker := login(t, db, "outbox_worker", "")
	runEngine(t, db, worker)

	var today, yesterday string
	err := db.QueryRow(t.Context(), `SELECT 'outbox.history_' || to_char(day, 'YYYYMMDD'), 'outbox.history_' || to_char(day - interval '1 day', 'YYYYMMDD')
		FROM (SELECT now() AT TIME ZONE 'UTC' AS day) AS today`).Scan(&today, &yesterday)
	if err != nil {
		t.Fatal(err)
	}
	for _, day := range []string{today, yesterday, "outbox.jobs", "outbox.history", "pg_catalog.pg_class"} {
		if _, err := worker.Exec(t.Context(), `SELECT outbox.drop_day($1::text::regclass)`, day); sqlstate(err) != "22023" {
			t.Errorf("drop %s: %v, want it refused", day, err)
		}
	}
	for _, sql := range []string{
		`SELECT count(*) FROM outbox.tokens`, `SELECT count(*) FROM ` + today, `DROP TABLE ` + today, `TRUNCATE outbox.jobs`,
		`UPDATE outbox.queues SET paused_at = now()`, `ALTER TABLE outbox.jobs NO FORCE ROW LEVEL SECURITY`, `SELECT outbox.secure()`,
		`CREATE POLICY mine ON outbox.tokens USING (true)`, `SET ROLE outbox_owner`, `DELETE FROM outbox.schema_version`,
		// Ids ahead of the identity would stop the acts that come to them, and a time in the future the trimming.
		`INSERT INTO outbox.audit (id, actor, act) OVERRIDING SYSTEM VALUE VALUES (1000, 'x', 'x')`,
		`INSERT INTO outbox.audit (at, actor, act) VALUES ('9999-01-01', 'x', 'x')`,
		`INSERT INTO outbox.freed_keys (id, tenant_id, queue, key) OVERRIDING SYSTEM VALUE VALUES (1000, gen_random_uuid(), 'q', 'k')`,
	} {
		wantForbidden(t, worker, sql)
	}
	// A day's bound is printed and read back in the session's settings: these would make it six days earlier.
	conn, err := worker.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec(t, conn, `SET datestyle = 'SQL'`)
	exec(t, conn, `SET timezone = 'UTC167'`)
	if _, err := conn.Exec(t.Context(), `SELECT outbox.drop_day($1::text::regclass)`, today); sqlstate(err) != "22023" {
		t.Errorf("drop today in another time zone: %v, want it refused", err)
	}
}

// An owner of the tables that is no superuser, a member of outbox_owner or of any
// other name, is subject to the policies too, and they let it through.
func TestAnOwnerThatIsNoSuperuserRunsTheWholeEngine(t *testing.T) {
	t.Parallel()
	pgtest.New(t) // the roles are there
	for name, setup := range map[string]string{
		"of its own name": `GRANT CREATE ON DATABASE %[2]s TO %[1]s`,
		"as outbox_owner": `GRANT outbox_owner TO %[1]s; ALTER ROLE %[1]s SET role = outbox_owner; GRANT CREATE ON DATABASE %[2]s TO outbox_owner`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.NewEmpty(t)
			owner := loginWith(t, db, setup)
			if err := migrate.Up(t.Context(), owner); err != nil {
				t.Fatal(err)
			}
			if super := ask[bool](t, owner, `SELECT usesuper FROM pg_user WHERE usename = current_user UNION ALL SELECT false LIMIT 1`); super {
				t.Fatal("it is a superuser")
			}
			if !ask[bool](t, owner, `SELECT row_security_active('outbox.jobs') AND row_security_active('outbox.history')`) {
				t.Error("row security does not apply to it")
			}
			exec(t, owner, oldDay)
			runEngine(t, owner, owner)
			if _, err := outbox.EnqueueMany(t.Context(), owner, requests(100, outbox.Options{Tenant: outbox.NewID()})); err != nil {
				t.Errorf("EnqueueMany: %v", err)
			}
			// A backup reads every partition by itself.
			if n := ask[int](t, owner, `SELECT count(*) FROM outbox.history`); n != 4 {
				t.Errorf("it sees %d closed jobs, want 4", n)
			}
			today := ask[string](t, owner, `SELECT 'outbox.history_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')`)
			if n := ask[int](t, owner, `SELECT count(*) FROM `+today); n == 0 {
				t.Error("it sees nothing of today's partition by itself")
			}
			if !ask[bool](t, owner, `SELECT outbox.secure()`) {
				t.Error("secure again returned false")
			}
		})
	}
}
