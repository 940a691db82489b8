package operator_test

import (
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A bulk act of one tenant hides no act of another, neither from the login that sees all tenants nor from one that row
// security binds, and the latter reads no acts of others to find its own.
func TestMarksOfATenantAreItsNewest(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"a tenant": outbox.NewID(), "the root tenant": outbox.RootTenant} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			owner, db := newRig(t)
			now := time.Now()
			exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, request_id) VALUES ('ada', 'key.release', 'mail', $1, 'r1')`, tenant)
			exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, request_id, job_id)
				SELECT 'zoe', 'job.replay', 'mail', $1, 'r2', gen_random_uuid() FROM generate_series(1, 20000)`, outbox.NewID())
			exec(t, db, `ANALYZE outbox.audit`)
			f := operator.SeriesFilter{Since: now.Add(-time.Hour), Until: now.Add(time.Hour), Step: time.Minute}
			var plans []string
			tied := operator.New(pgtest.Login(t, db, "outbox_api")).Planned(&plans)
			found := func(o *operator.Operator, of outbox.ID) {
				t.Helper()
				f := f
				f.Tenant = of
				marks, err := o.Marks(operator.WithTenant(t.Context(), tenant), f)
				if err != nil || len(marks) != 1 || marks[0].Act.RequestID != "r1" {
					t.Errorf("marks = %+v, %v; want the tenant's act", marks, err)
				}
			}
			found(owner, tenant)
			found(tied, tenant)
			found(tied, outbox.ID{})
			for _, plan := range plans {
				if read := rowsRead(t, plan); read > 10 {
					t.Errorf("%d rows are read for one act:\n%s", read, plan)
				}
			}
		})
	}
}

// A bulk act on jobs, of this queue or another, hides no act on the queue itself.
func TestMarksOfAQueueAreItsNewest(t *testing.T) {
	t.Parallel()
	for name, tenant := range map[string]outbox.ID{"a tenant": outbox.NewID(), "all tenants": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, db := newRig(t)
			mine := tenant
			if mine.IsZero() {
				mine = outbox.RootTenant
			}
			now := time.Now()
			exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, request_id) VALUES ('ada', 'key.release', 'mail', $1, 'r1')`, mine)
			exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, request_id, job_id)
				SELECT 'zoe', 'job.replay', CASE i % 2 WHEN 0 THEN 'mail' ELSE 'other' END, $1, 'r2', gen_random_uuid() FROM generate_series(1, 3000) AS i`, mine)
			exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, request_id) VALUES ('bob', 'key.release', 'mail', $1, 'r3'), ('bob', 'key.release', 'other', $1, 'r4')`, mine)
			exec(t, db, `ANALYZE outbox.audit`)
			var plans []string
			o := operator.New(pgtest.Login(t, db, "outbox_api")).Planned(&plans)
			marks, err := o.Marks(operator.WithTenant(t.Context(), tenant), operator.SeriesFilter{
				Since: now.Add(-time.Hour), Until: now.Add(time.Hour), Step: time.Minute, Queue: "mail", Tenant: tenant,
			})
			if err != nil || len(marks) != 3 || marks[0].Act.RequestID != "r1" || marks[1].Act.Number != 499 || marks[2].Act.RequestID != "r3" {
				t.Errorf("marks = %+v, %v; want the two acts on the queue, and the newest on its jobs", marks, err)
			}
			for _, plan := range plans {
				if read := rowsRead(t, plan); read > 2010 {
					t.Errorf("%d rows are read:\n%s", read, plan)
				}
			}
		})
	}
}

// Others' acts on the keys of a queue, however many, do not make a reader of one tenant's read them all.
func TestOthersActsOnAQueueAreReadUpToABound(t *testing.T) {
	t.Parallel()
	owner, db := newRig(t)
	mine, other := outbox.NewID(), outbox.NewID()
	acts := func(tenant outbox.ID, request string, n int) {
		exec(t, db, `INSERT INTO outbox.audit (actor, act, queue, tenant_id, request_id)
			SELECT 'ada', 'key.release', 'mail', $1, $2 FROM generate_series(1, $3::integer)`, tenant, request, n)
	}
	acts(mine, "early", 1)
	acts(other, "other", 5200)
	acts(mine, "late", 1)
	acts(other, "other", 1000)
	exec(t, db, `ANALYZE outbox.audit`)
	var plans []string
	tied := operator.New(pgtest.Login(t, db, "outbox_api")).Planned(&plans)
	now := time.Now()
	series := operator.SeriesFilter{Since: now.Add(-time.Hour), Until: now.Add(time.Hour), Step: time.Minute, Queue: "mail", Tenant: mine}
	for name, o := range map[string]*operator.Operator{"the owner": owner, "a tied login": tied} {
		ctx := operator.WithTenant(t.Context(), mine)
		marks, err := o.Marks(ctx, series)
		if err != nil || len(marks) != 2 || marks[0].Act.RequestID != "early" || marks[1].Act.RequestID != "late" {
			t.Errorf("%s: marks = %+v, %v; want the tenant's two acts, the earlier as one of its newest", name, marks, err)
		}
	}
	for _, plan := range plans {
		if read := rowsRead(t, plan); read > 5100 {
			t.Errorf("%d rows are read:\n%s", read, plan)
		}
	}
}
