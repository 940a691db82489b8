package dispatcher

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A claim looks at each job that a search has found, of the highest priority first and within the tenant's quota, and
// at no entry between them, which may be dead and too many, also if a found job has moved.
func TestAClaimLooksAtEachFoundJobByItself(t *testing.T) {
	t.Parallel()
	for n := range 2 {
		tenant := numbered(n)
		db := pgtest.New(t)
		now := time.Now()
		var ids []outbox.ID
		for i, priority := range []int16{0, 0, 0, 0, 9} {
			ids = append(ids, outbox.NewID())
			if _, err := db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, priority, run_at)
				VALUES ($1, $2, 'probe', '1', $3, $4)`, ids[i], tenant, priority, now.Add(time.Duration(i-9)*time.Hour)); err != nil {
				t.Fatal(err)
			}
		}
		place := func(i int) scheduler.Position {
			return scheduler.Position{RunAt: now.Add(time.Duration(i-9) * time.Hour), ID: ids[i]}
		}
		sched := scheduler.New(64)
		sched.NoteSurvey([]scheduler.SurveyRow{
			{Flow: scheduler.Flow{Tenant: tenant}, Unknown: true}, {Flow: scheduler.Flow{Tenant: tenant, Priority: 9}, Unknown: true},
		}, pgtype.Timestamptz{Time: now, Valid: true}, true, now, now)
		for _, share := range sched.Plan(now, scheduler.Places{Room: 64, Capacity: 1000}, nil).Plain {
			if share.Tenant.ID == outbox.RootTenant { // it has no jobs
				sched.Claimed(false, []scheduler.Share{share}, nil, scheduler.Extent{}, now)
			}
		}
		plan := func(room int) []scheduler.Share {
			for _, share := range sched.Plan(now, scheduler.Places{Room: 64, Capacity: 1000}, nil).Plain {
				if share.Quota = room; share.Tenant.ID == tenant {
					return []scheduler.Share{share}
				}
			}
			t.Fatal("no claim is planned")
			return nil
		}
		sched.Failed(false, []scheduler.Share{{Tenant: sched.Tenant(tenant), Cursors: plan(9)[0].Cursors[:1], Quota: 1}}, true, time.Second)
		sched.ChargeFailure(scheduler.TooMuch)
		ranges := sched.Search(now)
		found := make([][]scheduler.Position, len(ranges))
		for i, r := range ranges {
			switch r.Flow {
			case scheduler.Flow{Tenant: tenant}:
				found[i] = []scheduler.Position{place(0), place(2)}
			case scheduler.Flow{Tenant: tenant, Priority: 9}:
				found[i] = []scheduler.Position{place(4)}
			}
		}
		sched.NoteSearch(ranges, found, scheduler.SearchEnded, now, time.Minute, time.Minute)
		claim := func(room int, want ...int) {
			t.Helper()
			r := claimRequest{shares: plan(room), front: true, frontAt: sched.Front(false)}
			p := newShareParams(r)
			rows, err := sqlgen.New(db).ClaimJobs(t.Context(), sqlgen.ClaimJobsParams{
				Worker: "w", LeaseTtl: pgvalue.Interval(time.Hour), Queue: "default", Kinds: []string{"probe"}, MaxJobs: int32(room),
				TenantIds: p.tenants, Quotas: p.quotas, Firsts: p.firsts, Lasts: p.lasts, Priorities: p.priorities,
				FromRunAt: p.fromRunAt, FromID: p.fromID, OnlyIds: p.only,
			})
			var got []int
			var jobs []scheduler.Leased
			for _, row := range rows {
				i := slices.IndexFunc(ids, func(id outbox.ID) bool { return id == row.ID.Bytes })
				got = append(got, i)
				jobs = append(jobs, scheduler.Leased{Flow: scheduler.Flow{Tenant: tenant, Priority: row.Priority}, At: place(i)})
			}
			slices.Sort(got)
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("tenant %d: a claim of %d has got %v (%v), want only the found ones %v", n, room, got, err, want)
			}
			sched.Claimed(false, r.shares, jobs, scheduler.Extent{Front: true}, now)
		}
		claim(1, 4)
		if _, err := db.Exec(t.Context(), `UPDATE outbox.jobs SET run_at = now() - interval '1 minute' WHERE id = $1`, ids[0]); err != nil {
			t.Fatal(err)
		}
		claim(9, 2)
	}
}
