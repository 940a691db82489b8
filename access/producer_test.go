package access_test

import (
	"database/sql"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

var greet = outbox.Raw{KindName: "greet", Payload: []byte(`{}`)}

func requests(n int, opts outbox.Options) []outbox.Request {
	list := make([]outbox.Request, n)
	for i := range list {
		list[i] = outbox.Request{Args: greet, Options: opts}
	}
	return list
}

// waysToEnqueue returns every way in which a service stores jobs of a tenant, by its description. Each of them returns
// how many jobs it stores.
func waysToEnqueue(t *testing.T, tenant outbox.ID) map[string]func(*pgxpool.Pool) (int, error) {
	ctx, opts := t.Context(), outbox.Options{Tenant: tenant}
	once := outbox.Options{Tenant: tenant, IdempotencyKey: "once"}
	return map[string]func(*pgxpool.Pool) (int, error){
		"Enqueue": func(db *pgxpool.Pool) (int, error) {
			_, err := outbox.Enqueue(ctx, db, greet, opts)
			return 1, err
		},
		"Enqueue in a transaction that the producer commits": func(db *pgxpool.Pool) (int, error) {
			producer := outbox.NewProducer(db, outbox.NotifyCoalesced)
			err := producer.InTx(ctx, func(tx pgx.Tx) error {
				_, err := outbox.Enqueue(ctx, tx, greet, opts)
				return err
			})
			if flushed := producer.Flush(ctx); err == nil {
				err = flushed
			}
			return 1, err
		},
		"Enqueue twice under one idempotency key": func(db *pgxpool.Pool) (int, error) {
			first, err := outbox.Enqueue(ctx, db, greet, once)
			if err != nil {
				return 0, err
			}
			again, err := outbox.Enqueue(ctx, db, greet, once)
			if first != again {
				t.Errorf("the repeat answered %s, want %s", again, first)
			}
			return 1, err
		},
		"EnqueueMany": func(db *pgxpool.Pool) (int, error) {
			_, err := outbox.EnqueueMany(ctx, db, requests(2, opts))
			return 2, err
		},
		"EnqueueMany of as many as COPY is for": func(db *pgxpool.Pool) (int, error) {
			_, err := outbox.EnqueueMany(ctx, db, requests(100, opts))
			return 100, err
		},
		"EnqueueMany with idempotency keys": func(db *pgxpool.Pool) (int, error) {
			many := requests(2, outbox.Options{Tenant: tenant, IdempotencyKey: "many"})
			_, err := outbox.EnqueueMany(ctx, db, append(many, requests(1, opts)...))
			return 2, err
		},
		"database/sql": func(db *pgxpool.Pool) (int, error) {
			handle := stdlib.OpenDBFromPool(db)
			defer func(handle *sql.DB) { _ = handle.Close() }(handle)
			_, err := outbox.EnqueueMany(ctx, outbox.FromSQL(handle), requests(40, opts))
			return 40, err
		},
		"SQL": func(db *pgxpool.Pool) (int, error) {
			_, err := db.Exec(ctx, `SELECT outbox.enqueue('greet', tenant_id => $1)`, tenant)
			return 1, err
		},
		"SQL twice under one idempotency key": func(db *pgxpool.Pool) (int, error) {
			_, err := db.Exec(ctx, `SELECT outbox.enqueue('greet', tenant_id => $1, idempotency_key => 'sql') FROM generate_series(1, 2)`, tenant)
			return 1, err
		},
	}
}

func TestAProducerEnqueuesForItsTenantOnly(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := outbox.NewID(), outbox.NewID()
	producer := login(t, db, "outbox_producer", ours.String())
	stored := func() int { return ask[int](t, db, `SELECT count(*) FROM outbox.jobs`) }
	for way, enqueue := range waysToEnqueue(t, ours) {
		before := stored()
		if n, err := enqueue(producer); err != nil || stored()-before != n {
			t.Errorf("%s: stored %d jobs, %v; want %d", way, stored()-before, err, n)
		}
	}
	all := stored()
	for way, enqueue := range waysToEnqueue(t, theirs) {
		_, err := enqueue(producer)
		if sqlstate(err) != "42501" || !strings.Contains(err.Error(), "row-level security") {
			t.Errorf("%s for another tenant: %v, want it refused by row-level security", way, err)
		}
		if way == "Enqueue" && !strings.Contains(err.Error(), "posthaste docs guides/tenants") {
			t.Errorf("%s for another tenant: %v, want to be told where to look", way, err)
		}
	}
	if got := stored(); got != all {
		t.Errorf("%d jobs of another tenant were stored", got-all)
	}
	if n := ask[int](t, producer, `SELECT count(id) FROM outbox.jobs`); n != all {
		t.Errorf("it sees the ids of %d jobs, want its tenant's %d", n, all)
	}
}

func TestAProducerMayNothingElse(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	producer := login(t, db, "outbox_producer", outbox.RootTenant.String())
	exec(t, producer, `SELECT outbox.enqueue('greet')`)
	today := ask[string](t, db, `SELECT 'outbox.history_' || to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')`)
	const insert = `INSERT INTO outbox.jobs (id, kind, payload, tenant_id, `
	for _, sql := range []string{
		`SELECT payload FROM outbox.jobs`, `SELECT tenant_id FROM outbox.jobs`, `SELECT count(*) FROM outbox.open_jobs`,
		`UPDATE outbox.jobs SET run_at = now()`, `DELETE FROM outbox.jobs`, `TRUNCATE outbox.jobs`,
		`SELECT id FROM outbox.jobs FOR UPDATE`, `COPY outbox.jobs TO STDOUT`,
		insert + `epoch) VALUES (gen_random_uuid(), 'greet', '', '00000000-0000-0000-0000-000000000001', 9)`,
		insert + `status) VALUES (gen_random_uuid(), 'greet', '', '00000000-0000-0000-0000-000000000001', 'dead')`,
		`MERGE INTO outbox.jobs USING (SELECT 1) AS one ON true WHEN MATCHED THEN DELETE`,
		`SELECT count(*) FROM outbox.history`, `SELECT count(*) FROM ` + today, `SELECT count(*) FROM outbox.attempts`, `SELECT count(*) FROM outbox.inbox`,
		`SELECT count(*) FROM outbox.queues`, `SELECT count(*) FROM outbox.tokens`, `SELECT count(*) FROM outbox.schema_version`,
		`DELETE FROM outbox.idempotency_keys`, `UPDATE outbox.idempotency_keys SET key = 'x'`,
		`SELECT outbox.ensure_days(20)`, `SELECT outbox.drop_day('` + today + `')`, `SELECT outbox.secure()`,
		`CREATE TABLE outbox.mine ()`, `ALTER TABLE outbox.jobs DISABLE ROW LEVEL SECURITY`, `DROP TABLE ` + today,
		`SELECT nextval('outbox.schema_version_id_seq')`, `SET ROLE outbox_owner`, `SET ROLE outbox_worker`,
	} {
		wantForbidden(t, producer, sql)
	}
}

// Forgetting to say for whom is noticed at the first job.
func TestWithoutATenantAProducerEnqueuesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `SELECT outbox.enqueue('greet', idempotency_key => 'k')`)
	producer := login(t, db, "outbox_producer", "")
	for way, enqueue := range waysToEnqueue(t, outbox.RootTenant) {
		if _, err := enqueue(producer); sqlstate(err) != "42501" {
			t.Errorf("%s: %v, want it refused", way, err)
		}
	}
	if n := ask[int](t, producer, `SELECT (SELECT count(id) FROM outbox.jobs) + (SELECT count(*) FROM outbox.idempotency_keys)`); n != 0 {
		t.Errorf("it sees %d rows, want none", n)
	}
	tenant := outbox.NewID()
	err := outbox.InTenant(t.Context(), producer, tenant, func(tx pgx.Tx) error {
		_, err := outbox.EnqueueMany(t.Context(), tx, requests(100, outbox.Options{Tenant: tenant}))
		return err
	})
	if err != nil {
		t.Errorf("in a transaction of a tenant: %v", err)
	}

	// Or its connection string says it: ?app.tenant_id=…
	config := producer.Config()
	config.ConnConfig.RuntimeParams["app.tenant_id"] = tenant.String()
	named, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer named.Close()
	if _, err := outbox.Enqueue(t.Context(), named, greet, outbox.Options{Tenant: tenant}); err != nil {
		t.Errorf("on a connection of a tenant: %v", err)
	}
}

// A relay stores jobs of its sinks, and a person may change them. Nobody else stores any, nor their idempotency keys.
func TestOnlyARelayStoresJobsOfASink(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenant := outbox.NewID()
	statements := map[string]string{
		"a job":              `INSERT INTO outbox.jobs (id, tenant_id, kind, payload) VALUES (gen_random_uuid(), $1, 'relay:s', '1')`,
		"a job in its queue": `INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload) VALUES (gen_random_uuid(), $1, 'mail', 'relay:s', '1')`,
		"an idempotency key": `INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id) VALUES ($1, 'relay:s', gen_random_uuid(), gen_random_uuid())`,
	}
	for roles, may := range map[string]bool{
		"outbox_producer": false, "outbox_api": false, "outbox_producer, outbox_api": false,
		"outbox_worker": true, "outbox_worker, outbox_producer, outbox_api": true,
	} {
		pool := login(t, db, roles, tenant.String())
		for what, sql := range statements {
			if _, err := pool.Exec(t.Context(), sql, tenant); may != (err == nil) || !may && sqlstate(err) != "42501" {
				t.Errorf("%s stores %s: %v, may %t", roles, what, err, may)
			}
		}
	}
	api := login(t, db, "outbox_api", tenant.String())
	if tag, err := api.Exec(t.Context(), `UPDATE outbox.jobs SET priority = 1 WHERE kind = 'relay:s'`); err != nil || tag.RowsAffected() != 2 {
		t.Errorf("the API changes %d jobs, want 2: %v", tag.RowsAffected(), err)
	}
}
