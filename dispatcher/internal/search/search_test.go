package search

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

// A search returns of each flow, in order, the first jobs before a position that a claim would take: not those at the
// position or after it, not yet due, of other kinds, past their deadline or not waiting.
func TestASearchFindsWhatAClaimWouldTake(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	statements := Pool{Pool: db, Most: 2000}
	ranges, want := map[bool][]scheduler.Range{}, map[bool][]outbox.ID{}
	now, tenants := time.Now(), []outbox.ID{outbox.RootTenant, outbox.NewID()}
	for n := range 2 {
		for _, keyed := range []bool{false, true} {
			add := func(in time.Duration, kind, status string, deadline *time.Time) outbox.ID {
				id := outbox.NewID()
				if _, err := db.Exec(t.Context(), `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, priority, run_at, status, deadline, key)
					VALUES ($1, $2, $3, '1', 7, $4, $5, $6, $7)`, id, tenants[n], kind, now.Add(in), status, deadline,
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
			flow := scheduler.Flow{Tenant: tenants[n], Priority: 7}
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
	statements := Pool{Pool: db, Most: 2000}
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
