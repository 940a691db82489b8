package dispatcher_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// tenantN returns a tenant's id.
func tenantN(n int) outbox.ID { return outbox.ID{0: 0x7f, 1: byte(n >> 8), 2: byte(n), 15: 1} }

func of(n int) outbox.Options { return outbox.Options{Tenant: tenantN(n)} }

// sharedParams returns parameters that claim for each of the tenants, from the front of the given priorities.
func sharedParams(quotas []int32, tenants []int, priorities ...int16) sqlgen.ClaimJobsParams {
	if len(priorities) == 0 {
		priorities = []int16{0}
	}
	one := claimParams("w", 1, priorities...)
	p := sqlgen.ClaimJobsParams{Worker: "w", LeaseTtl: one.LeaseTtl, Queue: one.Queue, Kinds: one.Kinds, MaxJobs: 1000, Quotas: quotas}
	for _, n := range tenants {
		p.TenantIds = append(p.TenantIds, pgID(tenantN(n)))
		p.Firsts = append(p.Firsts, int32(len(p.Priorities)+1))
		p.Priorities, p.FromRunAt, p.FromID = append(p.Priorities, one.Priorities...), append(p.FromRunAt, one.FromRunAt...), append(p.FromID, one.FromID...)
		p.Lasts = append(p.Lasts, int32(len(p.Priorities)))
	}
	return p
}

// Whatever plan the planner makes, each tenant gets its quota and no more, of its highest priority first, and no other
// jobs are touched.
func TestClaimsOfTenantsAreRightUnderEveryPlan(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`)
	exec(t, db, `ANALYZE outbox.jobs`)
	var requests []outbox.Request
	for n := range 900 {
		requests = append(requests,
			outbox.Request{Args: probe{n}, Options: outbox.Options{Tenant: tenantN(n % 3), Priority: n % 2}},
			outbox.Request{Args: probe{n}})
	}
	requests = append(requests,
		outbox.Request{Args: probe{}, Options: outbox.Options{Tenant: tenantN(1), Key: outbox.KeyRules{Name: "k"}, Priority: 1}},
		outbox.Request{Args: probe{}, Options: outbox.Options{Tenant: tenantN(1), Delay: time.Hour, Priority: 1}},
		outbox.Request{Args: probe{}, Options: outbox.Options{Tenant: tenantN(1), Queue: "other", Priority: 1}})
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	tx := begin(t, db)
	q := sqlgen.New(tx)
	for i, settings := range plannerSettings() {
		exec(t, tx, "SAVEPOINT one")
		for _, set := range append(settings, "jit = off") {
			exec(t, tx, "SET LOCAL "+set)
		}
		// Of tenant 0 three come from its first priority, all from tenant 2's.
		got := map[string]int{}
		p := sharedParams([]int32{160, 3, 5}, []int{1, 0, 2}, 1, 0)
		claimed, err := q.ClaimJobs(t.Context(), p)
		if err != nil {
			t.Fatalf("%v: %v", settings, err)
		}
		for _, c := range claimed {
			got[fmt.Sprint("tenant ", c.TenantID.Bytes[2], " priority ", c.Priority)]++
		}
		want := map[string]int{"tenant 1 priority 1": 150, "tenant 1 priority 0": 10, "tenant 0 priority 1": 3, "tenant 2 priority 1": 5}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("%d, %v: claimed (-want +got):\n%s", i, settings, diff)
		}
		if n := ask[int](t, tx, `SELECT count(*) FROM outbox.jobs WHERE status = 'running'`); n != 168 {
			t.Fatalf("%v: running jobs = %d, want 168", settings, n)
		}
		exec(t, tx, "ROLLBACK TO one")
	}
}

func TestAClaimOfRootsJobsLeavesOtherTenantsAlone(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	enqueue(t, db, probe{}, of(1))
	enqueue(t, db, probe{}, outbox.Options{})
	claimed, err := sqlgen.New(db).ClaimJobs(t.Context(), claimParams("w", 10))
	if err != nil || len(claimed) != 1 || claimed[0].TenantID != pgID(outbox.RootTenant) {
		t.Errorf("claimed %d, %v; want the root tenant's", len(claimed), err)
	}
}

// The claims' and the survey's cost does not depend on how many jobs wait.
func TestSharedStatementsReadWhatTheyTell(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `
		INSERT INTO outbox.jobs (id, tenant_id, kind, payload)
		SELECT gen_random_uuid(), lpad(to_hex(CASE WHEN n < 5000 THEN 0 ELSE n % 1000 END), 32, '7')::uuid, 'probe', '{}' FROM generate_series(1, 10000) AS n`)
	enqueueProbes(t, db, 10, outbox.Options{})
	conn, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	exec(t, conn, `SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off`)
	buffers := func(statement string, args ...any) int {
		t.Helper()
		tx := begin(t, db)
		defer tx.Rollback(t.Context())
		exec(t, tx, `SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL jit = off`)
		var lines string
		rows, err := tx.Query(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) "+statement, args...)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var line string
			if err := rows.Scan(&line); err != nil {
				t.Fatal(err)
			}
			lines += line + "\n"
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		found := regexp.MustCompile(`Buffers: shared (?:hit=(\d+))?(?: read=(\d+))?`).FindStringSubmatch(lines)
		if found == nil {
			t.Fatalf("no buffers in:\n%s", lines)
		}
		hit, _ := strconv.Atoi(found[1])
		read, _ := strconv.Atoi(found[2])
		t.Logf("%.40s…: %d buffers", statement, hit+read)
		return hit + read
	}
	one := claimParams("w", 10)
	if n := buffers(sqlgen.ClaimJobs, "w", one.LeaseTtl, one.TenantIds, one.Quotas, one.Firsts, one.Lasts, one.Priorities, one.FromRunAt, one.FromID, nil,
		one.Queue, one.Kinds, false, int32(100)); n > 1000 {
		t.Errorf("a claim of 10 jobs of root reads %d buffers", n)
	}
	var tenants []pgtype.UUID
	var ones []int32
	var zeros []int16
	var fronts []pgtype.Timestamptz
	for n := range 200 {
		tenants, ones, zeros, fronts = append(tenants, pgID(outbox.ID(slices.Repeat([]byte{0x77}, 16)))), append(ones, int32(n+1)), append(zeros, 0), append(fronts, one.FromRunAt[0])
		tenants[n].Bytes[14], tenants[n].Bytes[15] = 0x71, byte(n)
	}
	quotas := slices.Repeat([]int32{2}, 200)
	if n := buffers(sqlgen.ClaimJobs, "w", one.LeaseTtl, tenants, quotas, ones, ones, zeros, fronts, slices.Repeat(one.FromID, 200), nil,
		"default", one.Kinds, false, int32(400)); n > 400*60 {
		t.Errorf("a claim of 400 jobs of 200 tenants reads %d buffers", n)
	}
	// A survey that knows one of the tenants finds 256 others.
	all := pgID(outbox.ID(slices.Repeat([]byte{0xff}, 16)))
	if n := buffers(sqlgen.SurveyQueue, []pgtype.UUID{pgID(outbox.ID{})}, "default", []pgtype.UUID{all}, int32(256), []pgtype.UUID{}, []pgtype.UUID{},
		nil, nil, nil, nil, nil, nil, []pgtype.UUID{tenants[0]}, []int16{0}, nil, nil, nil, nil, nil, nil, nil); n > 256*20 {
		t.Errorf("a survey that finds 256 tenants reads %d buffers", n)
	}
}

func TestATenantsMostUrgentFirst(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var want []int
	for n, priority := range []int{-32768, 0, 0, 5, 32767} {
		opts := of(1)
		opts.Priority = priority
		enqueue(t, db, probe{n}, opts)
	}
	opts := of(1)
	opts.RunAt = time.Now().Add(-time.Hour)
	enqueue(t, db, probe{5}, opts)
	want = []int{4, 3, 5, 1, 2, 0}
	got := order(t, db, len(want), func(h handler) { start(t, db, handle(h), single(quiet(nil))) })
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("order of the starts (-want +got):\n%s", diff)
	}
}

// More jobs of a kind without a handler here than a claim looks at precede those that have one; and a timer starts a
// job that becomes due later behind them.
func TestTenantsJobsBehindOnesOfOtherKinds(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `INSERT INTO outbox.jobs (id, tenant_id, kind, payload, run_at)
		SELECT gen_random_uuid(), $1, 'foreign', '{}', now() - interval '1 hour' FROM generate_series(1, 5000)`, pgID(tenantN(1)))
	enqueueProbes(t, db, 3, of(1))
	later := of(1)
	later.Delay = time.Second
	enqueue(t, db, probe{}, later)
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, db, "all but the foreign jobs are done", `SELECT count(*) = 4 FROM outbox.history`)
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.jobs WHERE kind = 'foreign' AND epoch = 0`); n != 5000 {
		t.Errorf("untouched jobs of another kind = %d, want 5000", n)
	}
}

// There are more tenants than one survey returns, and the jobs of many of them are due tomorrow.
func TestEveryTenantIsServed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var requests []outbox.Request
	for n := range 1500 {
		opts := of(n)
		if n%2 == 0 {
			opts.Delay = 24 * time.Hour
		}
		requests = append(requests, outbox.Request{Args: probe{n}, Options: opts}, outbox.Request{Args: probe{n}, Options: opts})
	}
	if _, err := outbox.EnqueueMany(t.Context(), db, requests); err != nil {
		t.Fatal(err)
	}
	start(t, db, handle(func(context.Context, *outbox.Job[probe]) error { return nil }), quiet(nil))
	await(t, db, "what is due is done", `SELECT count(*) = 1500 FROM outbox.history`)
}
