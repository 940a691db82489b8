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
	ranges, want := map[bool]*scheduler.Ranges{false: {}, true: {}}, map[bool][]outbox.ID{}
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
			want[keyed] = append(want[keyed], add(-6*time.Hour, "mine", "retrying", nil), add(-5*time.Hour, "mine", "pending", nil))
			add(-4*time.Hour, "mine", "pending", nil) // the third
			end := add(-time.Hour, "mine", "pending", nil)
			add(time.Hour, "mine", "pending", nil)
			flow := scheduler.Flow{Tenant: numbered(n), Priority: 7}
			ranges[keyed].Flows = append(ranges[keyed].Flows, flow)
			ranges[keyed].Ends = append(ranges[keyed].Ends, scheduler.Position{RunAt: now.Add(-time.Hour), ID: end})
		}
	}
	p := sqlgen.FindUnreachedParams{Queue: "default", Kinds: []string{"mine"}, MaxJobs: 2}
	p.TenantIds, p.Priorities, p.EndRunAt, p.EndID = rangeParams(*ranges[false])
	p.KeyedTenantIds, p.KeyedPriorities, p.KeyedEndRunAt, p.KeyedEndID = rangeParams(*ranges[true])
	find := func() map[bool][]outbox.ID {
		t.Helper()
		rows, err := statements.FindUnreached(t.Context(), p)
		if err != nil {
			t.Fatal(err)
		}
		got := map[bool][]outbox.ID{}
		for _, row := range rows {
			got[row.Keyed] = append(got[row.Keyed], row.ID.Bytes)
		}
		return got
	}
	for keyed, ids := range find() {
		if !slices.Equal(ids, want[keyed]) {
			t.Errorf("keyed %v: found %v, want %v", keyed, ids, want[keyed])
		}
	}
	p.MaxJobs = 9
	for keyed, ids := range find() {
		if len(ids) != 2*3 {
			t.Errorf("keyed %v: found %d jobs, want three of each tenant", keyed, len(ids))
		}
	}
	p.EndRunAt, p.KeyedEndRunAt = []pgtype.Timestamptz{pgTime(now.Add(2 * time.Hour)), pgTime(now.Add(2 * time.Hour))}, nil
	p.KeyedTenantIds, p.KeyedPriorities, p.KeyedEndID = nil, nil, nil
	p.EndID = []pgtype.UUID{pgvalue.UUID(outbox.ID{}), pgvalue.UUID(outbox.ID{})}
	if got := find(); len(got[false]) != 2*4 || len(got[true]) != 0 {
		t.Errorf("found %d jobs without a key and %d with one; want four of each tenant, and none", len(got[false]), len(got[true]))
	}
}
