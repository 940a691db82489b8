package operator_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// condition is one of a filter, and the same in SQL over all jobs.
type condition struct {
	set func(*operator.Filter)
	sql string
}

// Each condition alone, and each two together, mean the jobs that SQL says, page after page.
func TestFiltersMeanWhatSQLSays(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	tenant, parent := outbox.NewID(), outbox.NewID()
	if _, err := db.Exec(t.Context(), `
		INSERT INTO outbox.jobs (id, tenant_id, kind, queue, payload, status, attempt, epoch, lease_owner, lease_expires_at, started_at, last_error_code, parent_id, run_at, failed_at, key, error_fingerprint, created_at)
		SELECT overlay(outbox.uuid_v7()::text PLACING substr(ms, 1, 8) || '-' || substr(ms, 9) FROM 1 FOR 13)::uuid, CASE WHEN n % 3 = 0 THEN $1::uuid ELSE '00000000-0000-0000-0000-000000000001' END, CASE WHEN n % 2 = 0 THEN 'mail' ELSE 'bill' END, CASE WHEN n % 5 = 0 THEN 'slow' ELSE 'default' END,
			convert_to('{"n": ' || n % 4 || ', "needle": ' || (n % 8 = 3)::text || '}', 'UTF8'),
			(ARRAY['pending', 'running', 'retrying', 'dead'])[1 + n % 4]::outbox.job_status, n % 5 + 1, 1, CASE WHEN n % 4 = 1 THEN 'w' || n % 3 END,
			CASE WHEN n % 4 = 1 THEN now() + interval '1 hour' END, now(), CASE WHEN n % 7 < 4 THEN 'smtp' END, CASE WHEN n % 6 = 0 THEN $2::uuid END, now(),
			CASE WHEN n % 4 = 3 THEN now() END, CASE WHEN n % 9 = 0 THEN 'acme/eu' END, CASE WHEN n % 4 = 3 THEN 'f' || n % 3 END, created
		FROM generate_series(1, 120) AS n, LATERAL (SELECT now() - n * interval '1 min' AS created) AS at,
			LATERAL (SELECT lpad(to_hex((extract(epoch FROM created) * 1000)::bigint), 12, '0') AS ms) AS prefix`, tenant, parent); err != nil {
		t.Fatal(err)
	}
	// A third of them close, at three times of the day.
	if _, err := db.Exec(t.Context(), `SELECT outbox.close_jobs(array_agg(id), array_agg(epoch), array_agg('cancelled'::outbox.job_status))
		FROM (SELECT id, epoch, row_number() OVER (ORDER BY id) AS n FROM outbox.jobs WHERE status IN ('running', 'pending', 'retrying')) AS open WHERE n % 2 = 0`); err != nil {
		t.Fatal(err)
	}
	var first, middle time.Time
	var one outbox.ID
	if err := db.QueryRow(t.Context(), `SELECT min(finished_at), percentile_disc(0.5) WITHIN GROUP (ORDER BY finished_at), (array_agg(id))[7] FROM outbox.history`).Scan(&first, &middle, &one); err != nil {
		t.Fatal(err)
	}
	prefix := one.String()[:35]
	var created time.Time
	if err := db.QueryRow(t.Context(), `SELECT created_at FROM outbox.jobs ORDER BY created_at LIMIT 1 OFFSET 30`).Scan(&created); err != nil {
		t.Fatal(err)
	}
	conditions := map[string]condition{
		"worker":          {func(f *operator.Filter) { f.Worker = "w1" }, `worker = 'w1'`},
		"error code":      {func(f *operator.Filter) { f.ErrorCode = "smtp" }, `code = 'smtp'`},
		"attempt":         {func(f *operator.Filter) { f.MinAttempt = 3 }, `attempt >= 3`},
		"parent":          {func(f *operator.Filter) { f.Parent = parent }, `parent_id = '` + parent.String() + `'`},
		"prefix":          {func(f *operator.Filter) { f.IDPrefix = prefix }, `id::text LIKE '` + prefix + `%'`},
		"finished after":  {func(f *operator.Filter) { f.FinishedSince = middle }, `finished_at >= '` + middle.Format(time.RFC3339Nano) + `'`},
		"finished before": {func(f *operator.Filter) { f.FinishedUntil = middle }, `finished_at < '` + middle.Format(time.RFC3339Nano) + `'`},
		"kind":            {func(f *operator.Filter) { f.Kind = "mail" }, `kind = 'mail'`},
		"status":          {func(f *operator.Filter) { f.Statuses = []outbox.Status{outbox.Dead, outbox.Cancelled} }, `status IN ('dead', 'cancelled')`},
		"queue":           {func(f *operator.Filter) { f.Queue = "slow" }, `queue = 'slow'`},
		"key":             {func(f *operator.Filter) { f.Key = "acme/eu" }, `key = 'acme/eu'`},
		"created after":   {func(f *operator.Filter) { f.CreatedSince = created }, `created_at >= '` + created.Format(time.RFC3339Nano) + `'`},
		"created before":  {func(f *operator.Filter) { f.CreatedUntil = created }, `created_at < '` + created.Format(time.RFC3339Nano) + `'`},
		"payload":         {func(f *operator.Filter) { f.Contains = `"needle": true` }, `convert_from(payload, 'UTF8') LIKE '%"needle": true%'`},
		"fingerprint":     {func(f *operator.Filter) { f.Fingerprint = "f1" }, `fingerprint = 'f1'`},
		"tenant":          {func(f *operator.Filter) { f.Tenant = tenant }, `tenant_id = '` + tenant.String() + `'`},
	}
	some := 0
	for a, first := range conditions {
		for b, second := range conditions {
			if b < a {
				continue
			}
			f := operator.Filter{Limit: 7}
			first.set(&f)
			second.set(&f)
			rows, _ := db.Query(t.Context(), fmt.Sprintf(`SELECT id FROM (
				SELECT id, tenant_id, kind, status, attempt, lease_owner AS worker, last_error_code AS code, parent_id, NULL::timestamptz AS finished_at,
					queue, key, created_at, payload, error_fingerprint AS fingerprint FROM outbox.jobs
				UNION ALL SELECT id, tenant_id, kind, status, attempt, worker, last_error_code, parent_id, finished_at, queue, key, created_at, payload, NULL FROM outbox.history) AS job
				WHERE %s AND %s ORDER BY id DESC`, first.sql, second.sql))
			want, err := pgx.CollectRows(rows, pgx.RowTo[outbox.ID])
			if err != nil {
				t.Fatal(err)
			}
			var got []outbox.ID
			for job, err := range o.All(t.Context(), f) {
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, job.ID)
			}
			if some += len(want); !slices.Equal(got, want) {
				t.Errorf("%s and %s: %d jobs, want %d", a, b, len(got), len(want))
			}
		}
	}
	if some < 200 {
		t.Errorf("all conditions together mean %d jobs: this looks at nothing", some)
	}
	for _, bad := range []operator.Filter{{IDPrefix: "g"}, {IDPrefix: one.String() + "0"}, {IDPrefix: "0197-"}, {MinAttempt: -1}, {Worker: "\x00"}} {
		_, err := o.Page(t.Context(), bad)
		if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("%+v: %v, want an InvalidError", bad, err)
		}
	}
}

func TestChildrenAreListedOpenAndClosed(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	for _, tenant := range []outbox.ID{outbox.RootTenant, outbox.NewID()} {
		parent := enqueue(t, db, "mail", outbox.Options{Tenant: tenant})
		enqueue(t, db, "mail", outbox.Options{Tenant: tenant})
		var children []outbox.ID
		for range 5 {
			children = append([]outbox.ID{enqueue(t, db, "mail", outbox.Options{Tenant: tenant})}, children...)
		}
		if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET parent_id = $1 WHERE id = ANY ($2)`, parent, children); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Cancel(t.Context(), children[3]); err != nil {
			t.Fatal(err)
		}
		theirs := operator.New(pgtest.Login(t, db, "outbox_api"))
		ctx := operator.WithTenant(t.Context(), tenant)
		page, err := theirs.Children(ctx, parent, outbox.ID{}, 3)
		rest, err2 := theirs.Children(ctx, parent, children[2], 3)
		if got := append(ids(page), ids(rest)...); err != nil || err2 != nil || !slices.Equal(got, children) || rest[0].Status != outbox.Cancelled || rest[0].Parent != parent {
			t.Errorf("children %v, %v, %v; want %v", got, err, err2, children)
		}
		for _, owner := range []*operator.Operator{o, theirs} {
			if found, err := owner.Children(operator.WithTenant(t.Context(), outbox.NewID()), parent, outbox.ID{}, 0); err != nil || len(found) != 0 {
				t.Errorf("another tenant sees %v, %v", ids(found), err)
			}
		}
	}
}

func TestAJobIsFoundByItsIdempotencyKey(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	tenant := outbox.NewID()
	id := enqueue(t, db, "mail", outbox.Options{IdempotencyKey: "order 7", Tenant: tenant})
	if found, err := o.FindByIdempotencyKey(t.Context(), tenant, "mail", "order 7"); err != nil || found != id {
		t.Errorf("found %s, %v; want %s", found, err, id)
	}
	for _, other := range []struct {
		tenant    outbox.ID
		kind, key string
	}{{outbox.ID{}, "mail", "order 7"}, {tenant, "bill", "order 7"}, {tenant, "mail", "order 8"}} {
		if found, err := o.FindByIdempotencyKey(t.Context(), other.tenant, other.kind, other.key); !errors.Is(err, operator.ErrNotFound) {
			t.Errorf("%+v: found %s, %v; want ErrNotFound", other, found, err)
		}
	}
}
