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

// A search returns of each flow, in order, the first jobs before a position that a claim would take: not those at the
// position or after it, not yet due, of other kinds, past their deadline or not waiting.
func TestASearchFindsWhatAClaimWouldTake(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := control(t, db)
	statements := loopStatements{sqlgen.New(pool), pool}
	ranges, want := map[bool][]scheduler.Range{}, map[bool][]outbox.ID{}
	now := time.Now()
	for n := range 2 {
		for _, keyed := range []bool{false, true} {
			add := func(in time.Duration, kind, status string, deadline *time.Time) outbox.ID {
				id := outbox.NewID()
				if _, err := db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, priority, run_at, status, deadline, key)
					VALUES ($1, $2, $3, '1', 7, $4, $5, $6, $7)`, id, numbered(n), kind, now.Add(in), status, deadline,
					pgtype.Text{String: id.String(), Valid: keyed}); err != nil {
					t.Fatal(err)
				}
				return id
			}
			over := now.Add(-time.Minute)
			add(-9*time.Hour, "other", "pending", nil)
			add(-8*time.Hour, "mine", "pending", &over)
			add(-7*time.Hour, "mine", "created", nil)
			want[keyed] = append(want[keyed], add(-6*time.Hour, "mine", "retrying", nil), add(-5*time.Hour, "mine", "pending", nil),
				add(-4*time.Hour, "mine", "pending", nil))
			end := add(-time.Hour, "mine", "pending", nil)
			add(time.Hour, "mine", "pending", nil)
			flow := scheduler.Flow{Tenant: numbered(n), Priority: 7}
			ranges[keyed] = append(ranges[keyed], scheduler.Range{Flow: flow, Keyed: keyed, End: scheduler.Position{RunAt: now.Add(-time.Hour), ID: end}})
		}
	}
	find := func(ranges []scheduler.Range) (got []outbox.ID) {
		t.Helper()
		found, _, err := statements.FindUnreached(t.Context(), "default", []string{"mine"}, ranges)
		if err != nil || len(found) != len(ranges) {
			t.Fatalf("%d of %d ranges: %v", len(found), len(ranges), err)
		}
		for _, places := range found {
			for _, at := range places {
				got = append(got, at.ID)
			}
		}
		return got
	}
	for _, keyed := range []bool{false, true} {
		if got := find(ranges[keyed]); !slices.Equal(got, want[keyed]) {
			t.Errorf("keyed %v: found %v, want %v", keyed, got, want[keyed])
		}
		later := ranges[keyed][0]
		later.End = scheduler.Position{RunAt: now.Add(2 * time.Hour)}
		if got := find([]scheduler.Range{later}); len(got) != 4 {
			t.Errorf("keyed %v: found %d jobs, want four: one is not due", keyed, len(got))
		}
	}
}

// A search that fails in a range reports what it has found before; one that has found many jobs leaves the other ranges
// to the next.
func TestASearchReportsWhatItHasFoundBeforeItEnds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	pool := control(t, db)
	statements := loopStatements{sqlgen.New(pool), pool}
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, run_at)
		SELECT gen_random_uuid(), ('00000000-0000-0000-0000-0000000000' || to_char(n % 10, 'FM00'))::uuid, 'mine', '1', now() - interval '1 hour'
		FROM generate_series(1, 3000) AS n`); err != nil {
		t.Fatal(err)
	}
	var ranges []scheduler.Range
	for n := range 10 {
		ranges = append(ranges, scheduler.Range{Flow: scheduler.Flow{Tenant: outbox.ID{15: byte(n)}}, End: scheduler.Position{RunAt: time.Now()}})
	}
	find := func() ([][]scheduler.Position, error) {
		found, _, err := statements.FindUnreached(t.Context(), "default", []string{"mine"}, ranges)
		return found, err
	}
	if found, err := find(); err != nil || len(found) != 7 || len(found[6]) != scheduler.MaxFound {
		t.Errorf("looked at %d ranges (%v), want at seven: they have enough for a claim", len(found), err)
	}
	ranges[2].End.RunAt = time.Date(300_000, 1, 1, 0, 0, 0, 0, time.UTC) // beyond what Postgres can store
	if found, err := find(); err == nil || len(found) != 2 {
		t.Errorf("the third range failed (%v): %d were looked at before, want two", err, len(found))
	}
}

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
