package access_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/access"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// tenant is what two of the tests have of each: a waiting job, a dead letter, a
// closed job, and what hangs on them.
type tenant struct{ id, waiting, dead, closed outbox.ID }

func populate(t *testing.T, db *pgxpool.Pool) tenant {
	t.Helper()
	n := tenant{id: outbox.NewID()}
	for _, job := range []*outbox.ID{&n.waiting, &n.dead, &n.closed} {
		id, err := outbox.Enqueue(t.Context(), db, greet, outbox.Options{Tenant: n.id, IdempotencyKey: fmt.Sprintf("%p", job)})
		if err != nil {
			t.Fatal(err)
		}
		*job = id
	}
	exec(t, db, `UPDATE outbox.jobs SET status = 'running', attempt = 1, epoch = 1, lease_owner = 'w', lease_expires_at = now(), started_at = now()
		WHERE id IN ($1, $2)`, n.dead, n.closed)
	exec(t, db, `UPDATE outbox.jobs SET status = 'dead', epoch = 2, lease_owner = NULL, lease_expires_at = NULL WHERE id = $1`, n.dead)
	exec(t, db, `INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, tenant_id)
		VALUES ($1, 1, 1, 'w', now(), 'boom', 'boom', $2)`, n.dead, n.id)
	exec(t, db, `WITH done AS (DELETE FROM outbox.jobs WHERE id = $1 RETURNING *)
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
		SELECT id, tenant_id, run_at, created_at, started_at, epoch, 'succeeded', status, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type FROM done`, n.closed)
	return n
}

// everythingOf returns all that a tenant has, to see whether it changed.
func everythingOf(t *testing.T, db *pgxpool.Pool, n tenant) string {
	t.Helper()
	return ask[string](t, db, `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
		SELECT jobs::text FROM outbox.jobs WHERE tenant_id = $1 UNION ALL SELECT history::text FROM outbox.history WHERE tenant_id = $1
		UNION ALL SELECT attempts::text FROM outbox.attempts WHERE tenant_id = $1 UNION ALL SELECT k::text FROM outbox.idempotency_keys AS k WHERE tenant_id = $1
	) AS everything (line)`, n.id)
}

// The second wall: an operator that asks for no tenant, on a pool that is tied to
// one, sees and changes nothing of another.
func TestAnOperatorOfOneTenantCannotReachAnothers(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := populate(t, db), populate(t, db)
	untouched := everythingOf(t, db, theirs)
	o := operator.New(login(t, db, "outbox_api", ours.id.String()))
	ctx := t.Context()

	jobs, err := o.Jobs(ctx, operator.Filter{})
	if err != nil || len(jobs) != 3 {
		t.Errorf("it lists %d jobs, %v; want its 3", len(jobs), err)
	}
	for _, job := range jobs {
		if job.Tenant != ours.id {
			t.Errorf("it lists %s of %s", job.ID, job.Tenant)
		}
	}
	queues, err := o.Queues(ctx)
	if err != nil || len(queues) != 1 || queues[0].Jobs[outbox.Pending] != 1 || queues[0].Jobs[outbox.Dead] != 1 {
		t.Errorf("it counts %+v, %v; want 1 pending and 1 dead", queues, err)
	}
	nobody := outbox.NewID()
	for name, act := range map[string]func(outbox.ID) error{
		"show":    func(id outbox.ID) error { _, err := o.Job(ctx, id); return err },
		"retry":   func(id outbox.ID) error { return o.Retry(ctx, id) },
		"dismiss": func(id outbox.ID) error { return o.Dismiss(ctx, id) },
	} {
		absent := strings.ReplaceAll(fmt.Sprint(act(nobody)), nobody.String(), "ID")
		for _, id := range []outbox.ID{theirs.waiting, theirs.dead, theirs.closed} {
			err := act(id)
			if got := strings.ReplaceAll(fmt.Sprint(err), id.String(), "ID"); !errors.Is(err, operator.ErrNotFound) || got != absent {
				t.Errorf("%s another's job: %v, want what a job that does not exist gets: %s", name, got, absent)
			}
		}
	}
	if err := o.Pause(ctx, "default"); sqlstate(err) != "42501" {
		t.Errorf("pause a queue, which is everybody's: %v, want it refused", err)
	}
	if got := everythingOf(t, db, theirs); got != untouched {
		t.Errorf("another's rows changed (-before +after):\n%s", cmp.Diff(untouched, got))
	}

	// And its own it can reach.
	if job, err := o.Job(ctx, ours.dead); err != nil || len(job.Attempts) != 1 {
		t.Errorf("its own dead letter: %+v, %v; want it with 1 attempt", job, err)
	}
	if err := errors.Join(o.Retry(ctx, ours.dead), o.Retry(ctx, ours.waiting)); err != nil {
		t.Error(err)
	}
	all := operator.New(login(t, db, "outbox_reader", "*"))
	if jobs, err := all.Jobs(ctx, operator.Filter{}); err != nil || len(jobs) != 6 {
		t.Errorf("a reader of all tenants lists %d jobs, %v; want 6", len(jobs), err)
	}
}

// Each role × context × way to look: a row of another tenant never, and without a
// tenant none at all.
func TestWhatEachRoleSees(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	a, b := populate(t, db), populate(t, db)
	// A table that names its job instead of its tenant, as other migrations add them.
	exec(t, db, `CREATE TABLE outbox.remarks (job_id uuid, remark text); INSERT INTO outbox.remarks
		SELECT id, '' FROM outbox.jobs UNION ALL SELECT id, '' FROM outbox.history; SELECT outbox.secure()`)
	exec(t, db, `INSERT INTO outbox.queues (queue, paused_at) VALUES ('mail', now()); INSERT INTO outbox.inbox (consumer, message_id) VALUES ('c', 'm')`)

	// How many rows of one tenant there are, and of all.
	looks := map[string][2]int{
		`SELECT tenant_id FROM outbox.jobs`:                                                          {2, 4},
		`SELECT tenant_id FROM outbox.history`:                                                       {1, 2},
		`SELECT tenant_id FROM outbox.attempts`:                                                      {1, 2},
		`SELECT tenant_id FROM outbox.open_jobs`:                                                     {2, 4},
		`SELECT tenant_id FROM outbox.closed_jobs`:                                                   {1, 2},
		`SELECT tenant_id FROM outbox.dead_letters`:                                                  {1, 2},
		`SELECT tenant_id FROM outbox.jobs WHERE tenant_id = '` + b.id.String() + `'`:                {-1, 2},
		`SELECT j.tenant_id FROM outbox.remarks JOIN (TABLE outbox.open_jobs) AS j ON j.id = job_id`: {2, 4},
		`SELECT NULL::uuid FROM outbox.remarks`:                                                      {3, 6},
	}
	for _, role := range []string{"outbox_api", "outbox_reader"} {
		pool := login(t, db, role, "")
		for context, which := range map[string]int{a.id.String(): 0, "*": 1, "": 2, "unset": 2, outbox.NewID().String(): 2} {
			for look, n := range looks {
				want := append(n[:], 0)[which]
				if want < 0 {
					want = 0 // asking for another's
				}
				tenants := see(t, pool, context, look)
				if len(tenants) != want {
					t.Errorf("%s with %q: %s shows %d rows, want %d", role, context, look, len(tenants), want)
				}
				for _, tenant := range tenants {
					if which == 0 && !tenant.IsZero() && tenant != a.id {
						t.Errorf("%s with %q: %s shows a row of %s", role, context, look, tenant)
					}
				}
			}
		}
		day := ask[string](t, db, `SELECT tableoid::regclass::text FROM outbox.history LIMIT 1`)
		for _, sql := range []string{
			`SELECT count(*) FROM ` + day, `SELECT count(*) FROM outbox.inbox`, `SELECT outbox.drop_day('` + day + `')`, `SELECT outbox.ensure_days(9)`,
			`TRUNCATE outbox.jobs`, `INSERT INTO outbox.tokens DEFAULT VALUES`, `DELETE FROM outbox.history`, `SET ROLE outbox_worker`,
		} {
			wantForbidden(t, pool, sql)
		}
		if n := ask[int](t, pool, `SELECT count(*) FROM outbox.queues`); n != 1 {
			t.Errorf("%s sees %d paused queues, want 1", role, n)
		}
	}
	reader := login(t, db, "outbox_reader", "*")
	for _, sql := range []string{`UPDATE outbox.jobs SET run_at = now()`, `DELETE FROM outbox.attempts`, `INSERT INTO outbox.queues VALUES ('x')`, `SELECT count(*) FROM outbox.tokens`, `SELECT count(*) FROM outbox.idempotency_keys`} {
		wantForbidden(t, reader, sql)
	}
}

// see runs a query with app.tenant_id as it says, and returns whose rows it shows.
func see(t *testing.T, pool *pgxpool.Pool, context, query string) []outbox.ID {
	t.Helper()
	var tenants []outbox.ID
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		if context != "unset" {
			exec(t, tx, `SELECT set_config('app.tenant_id', $1, true)`, context)
		}
		rows, _ := tx.Query(t.Context(), query)
		var err error
		tenants, err = pgx.CollectRows(rows, pgx.RowTo[outbox.ID])
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return tenants
}

// No write puts a row where its writer cannot see it, or moves one there.
func TestTheAPIWritesForItsTenantOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := populate(t, db), populate(t, db)
	untouched := everythingOf(t, db, theirs)
	pool := login(t, db, "outbox_api", ours.id.String())
	const columns = `(id, tenant_id, kind, payload)`
	for _, c := range []struct{ sql, state string }{
		{`INSERT INTO outbox.jobs ` + columns + ` VALUES (gen_random_uuid(), $1, 'greet', '')`, "42501"},
		{`INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id) VALUES ($1, 'greet', 'x', gen_random_uuid())`, "42501"},
		{`UPDATE outbox.jobs SET tenant_id = $1`, "42501"},
		{`UPDATE outbox.jobs SET priority = 9 WHERE tenant_id = $1`, ""},
		{`DELETE FROM outbox.jobs WHERE tenant_id = $1`, ""},
		{`MERGE INTO outbox.jobs USING (SELECT $1::uuid AS id) AS other ON jobs.tenant_id = other.id WHEN MATCHED THEN DELETE`, ""},
		{`MERGE INTO outbox.jobs USING (SELECT $1::uuid AS id) AS other ON false WHEN NOT MATCHED THEN INSERT ` + columns + ` VALUES (gen_random_uuid(), other.id, 'greet', '')`, "42501"},
		{`INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
			VALUES (gen_random_uuid(), $1, now(), now(), 1, 'dismissed', 'dead', 1, 1, 0, 0, 'q', 'k', '', '')`, "42501"},
	} {
		if _, err := pool.Exec(t.Context(), c.sql, theirs.id); sqlstate(err) != c.state {
			t.Errorf("%s: %v, want SQLSTATE %q", c.sql, err, c.state)
		}
	}
	if got := everythingOf(t, db, theirs); got != untouched {
		t.Errorf("another's rows changed (-before +after):\n%s", cmp.Diff(untouched, got))
	}
	conn, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	var out strings.Builder
	if _, err := conn.Conn().PgConn().CopyTo(t.Context(), &out, `COPY outbox.jobs TO STDOUT`); err != nil || strings.Contains(out.String(), theirs.id.String()) {
		t.Errorf("COPY shows another's rows, or fails: %v", err)
	}
}

// What the API stores is a job that nobody has touched: it can make none appear to run, nor to have run.
func TestTheAPIStoresJobsAsAProducerDoes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		api := login(t, db, "outbox_api", tenant.String())
		exec(t, api, `INSERT INTO outbox.jobs (id, kind, payload, tenant_id, status) VALUES (gen_random_uuid(), 'greet', '', $1, 'created')`, tenant)
		for column, value := range map[string]string{
			"status": `'running'`, "epoch": "9", "attempt": "1", "lost_leases": "1", "lease_owner": `'w'`, "lease_expires_at": "now()", "created_at": "now()",
			"started_at": "now()", "last_error_code": `'x'`,
		} {
			wantForbidden(t, api, fmt.Sprintf(`INSERT INTO outbox.jobs (id, kind, payload, tenant_id, %s) VALUES (gen_random_uuid(), 'greet', '', '%s', %s)`, column, tenant, value))
		}
		wantForbidden(t, api, `INSERT INTO outbox.jobs (id, kind, payload, tenant_id, status, failed_at) VALUES (gen_random_uuid(), 'greet', '', '`+tenant.String()+`', 'dead', now())`)
		wantForbidden(t, api, `UPDATE outbox.jobs SET payload = 'x'`)
	}
}

// A connection that served one tenant goes back to the pool as if it had not,
// however the transaction ended; statements that were prepared for one tenant are
// used for the next.
func TestAConnectionKeepsNothingOfATenant(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenants := []tenant{populate(t, db), populate(t, db)}
	config := login(t, db, "outbox_api", "").Config()
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	for how, end := range map[string]func(pgx.Tx) error{
		"committed":     func(pgx.Tx) error { return nil },
		"rolled back":   func(pgx.Tx) error { return context.Canceled },
		"aborted":       func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), `SELECT 1/0`); return err },
		"in a panic":    func(pgx.Tx) error { panic("handler") },
		"by its tenant": func(tx pgx.Tx) error { _, err := tx.Exec(t.Context(), `COMMIT`); return err },
	} {
		func() {
			defer func() { _ = recover() }()
			_ = access.InTx(t.Context(), pool, access.Principal{Tenant: tenants[0].id}, end)
		}()
		for range 4 {
			if n := ask[int](t, pool, `SELECT count(*) FROM outbox.jobs`); n != 0 {
				t.Errorf("after a transaction that was %s, %d jobs are seen without a tenant", how, n)
			}
		}
	}

	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for range 250 {
				who := access.Principal{Tenant: tenants[rand.IntN(2)].id, AllTenants: rand.IntN(10) == 0}
				err := access.InTx(t.Context(), pool, who, func(tx pgx.Tx) error {
					rows, _ := tx.Query(t.Context(), `SELECT tenant_id FROM outbox.jobs UNION ALL SELECT tenant_id FROM outbox.history`)
					seen, err := pgx.CollectRows(rows, pgx.RowTo[outbox.ID])
					for _, tenant := range seen {
						if tenant != who.Tenant && !who.AllTenants {
							t.Errorf("%s sees a row of %s", who.Tenant, tenant)
						}
					}
					if want := 3; len(seen) != want && !who.AllTenants || who.AllTenants && len(seen) != 6 {
						t.Errorf("%v sees %d rows", who, len(seen))
					}
					return err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
}

// The API judges bearers before it knows a tenant, and makes no tokens.
func TestTheAPIAuthenticates(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	grant := access.Grant{Name: "shop", Capabilities: []access.Capability{access.JobsRead}, CreatedBy: "ada"}
	token, _, err := access.NewTokens(db, access.TokensConfig{}).Create(t.Context(), grant)
	if err != nil {
		t.Fatal(err)
	}
	pool := login(t, db, "outbox_api", "")
	tokens := access.NewTokens(pool, access.TokensConfig{})
	if who, err := tokens.Authenticate(t.Context(), token.Reveal()); err != nil || who.Name != "shop" {
		t.Errorf("got %v, %v; want shop", who, err)
	}
	if !ask[bool](t, db, `SELECT last_used_at IS NOT NULL FROM outbox.tokens`) {
		t.Error("its use was not noted")
	}
	if _, _, err := tokens.Create(t.Context(), grant); sqlstate(err) != "42501" {
		t.Errorf("create: %v, want it forbidden", err)
	}
	if _, err := tokens.Revoke(t.Context(), token.ID(), "shop"); sqlstate(err) != "42501" {
		t.Errorf("revoke: %v, want it forbidden", err)
	}
	wantForbidden(t, pool, `UPDATE outbox.tokens SET all_tenants = true`)
}

func TestATenantsNameIsNeeded(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	never := func(pgx.Tx) error { t.Error("it was begun"); return nil }
	if err := access.InTx(t.Context(), db, access.Principal{}, never); err == nil {
		t.Error("a principal without a tenant got a transaction")
	}
	populate(t, db)
	pool := login(t, db, "outbox_api", "not-a-uuid")
	if _, err := pool.Exec(t.Context(), `SELECT count(*) FROM outbox.jobs`); sqlstate(err) != "22P02" {
		t.Errorf("with a tenant that is none: %v, want an error that says so", err)
	}
}

// The policy does not keep the API from the primary key: a look at one job is a
// look at one row.
func TestTheAPIFindsAJobByItsKey(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	conn, err := login(t, db, "outbox_api", "*").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	all := statements(t)
	for statement, index := range map[string]string{
		"FindJob": "Index Scan using jobs_pkey", "RetryJob": "Index Scan using jobs_pkey", "DismissJob": "Index Scan using jobs_dead_letter_idx",
		"ListJobs": "Index Scan Backward using jobs_dead_letter_idx", "FindIdempotencyKey": "Index Scan using idempotency_keys_pkey",
	} {
		if plan, err := explain(t, conn.Conn(), statement, all[statement]); err != nil || !strings.Contains(plan, index) {
			t.Errorf("%s: %v, want %q in\n%s", statement, err, index, plan)
		}
	}
}
