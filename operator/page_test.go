package operator_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// storeMixed stores open jobs, dead letters and closed jobs whose ids are mixed; each
// tenth is of the kind "rare".
func storeMixed(t *testing.T, db outbox.DB, n int) {
	t.Helper()
	exec(t, db, `
		WITH mixed AS (SELECT outbox.uuid_v7() AS id, i, CASE WHEN i % 10 = 0 THEN 'rare' ELSE 'common' END AS kind FROM generate_series(1, $1) AS i),
		open AS (
			INSERT INTO outbox.jobs (id, kind, payload, status, attempt)
			SELECT id, kind, '', CASE WHEN i % 3 = 0 THEN 'dead' ELSE 'pending' END::outbox.job_status, 0 FROM mixed WHERE i % 3 < 2)
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
		SELECT id, '00000000-0000-0000-0000-000000000001', now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'default', kind, '', 'text/plain' FROM mixed WHERE i % 3 = 2`, n)
}

// However a list is cut into pages that read a few rows each, it is the same list.
func TestPagesAreTheWholeList(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeMixed(t, db, 300)
	for name, f := range map[string]operator.Filter{
		"few of many":       {Kind: "rare"},
		"most":              {Kind: "common"},
		"none":              {Kind: "absent"},
		"one table":         {Kind: "rare", Statuses: []outbox.Status{outbox.Succeeded}},
		"dead letters":      {Statuses: []outbox.Status{outbox.Dead}},
		"two at a time":     {Kind: "rare", Limit: 2},
		"but the newest":    {Kind: "common", Skip: 150},
		"but most":          {Kind: "rare", Skip: 20, Limit: 2},
		"but all":           {Kind: "rare", Skip: 1000},
		"of one tenant":     {Kind: "rare", Tenant: outbox.RootTenant},
		"of another tenant": {Kind: "rare", Tenant: outbox.ID{15: 9}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			whole := f
			whole.Limit = operator.MaxLimit
			var want []outbox.ID
			for {
				jobs, err := o.Jobs(t.Context(), whole)
				if err != nil {
					t.Fatal(err)
				}
				for _, job := range jobs {
					want = append(want, job.ID)
				}
				if len(jobs) < operator.MaxLimit {
					break
				}
				whole.Before, whole.Skip = jobs[len(jobs)-1].ID, 0
			}
			var got []outbox.ID
			pages := 0
			for f := f; pages < 1000; pages++ {
				page, err := o.FirstPage(t.Context(), f, 7)
				if err != nil {
					t.Fatal(err)
				}
				for _, job := range page.Jobs {
					got = append(got, job.ID)
				}
				if page.Next.IsZero() {
					break
				}
				f.Before, f.Skip = page.Next, page.Skip
			}
			if !slices.Equal(got, want) {
				t.Errorf("%d jobs on the pages, %d in the list", len(got), len(want))
			}
			if f.Tenant.IsZero() && f.Limit == 0 && pages < 3 {
				t.Errorf("%d pages: they read more than they were told to", pages+1)
			}
		})
	}
}

func TestPagesOfDeadLettersAreTheWholeList(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeMixed(t, db, 300)
	for limit, f := range map[int]operator.DeadLetterFilter{50: {Kind: "rare"}, 3: {Kind: "rare"}, 200: {Kind: "common"}, 7: {Kind: "absent"}} {
		var want, got []outbox.ID
		rows, err := db.Query(t.Context(), `SELECT id FROM outbox.jobs WHERE status = 'dead' AND kind = $1 ORDER BY id DESC`, f.Kind)
		if err == nil {
			want, err = pgx.CollectRows(rows, pgx.RowTo[outbox.ID])
		}
		if err != nil {
			t.Fatal(err)
		}
		pages := 0
		for before := (outbox.ID{}); pages < 1000; pages++ {
			page, err := o.FirstLetters(t.Context(), f, before, limit, 7)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range page.DeadLetters {
				got = append(got, l.ID)
			}
			if before = page.Next; before.IsZero() {
				break
			}
		}
		if !slices.Equal(got, want) || pages < 10 {
			t.Errorf("%s, %d at most: %d dead letters on %d pages, %d in the list; want those, a few rows at a time", f.Kind, limit, len(got), pages+1, len(want))
		}
	}
	var plans []string
	if _, err := operator.New(db).Planned(&plans).DeadLetters(t.Context(), operator.DeadLetterFilter{Kind: "absent"}, outbox.ID{}, 0); err != nil || len(plans) < 2 {
		t.Errorf("%d statements by index, %v; want where a round ends and its dead letters", len(plans), err)
	}
}

// What is left out is read a part at a time, also within one round.
func TestManyJobsAreLeftOut(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeMixed(t, db, 3000)
	f := operator.Filter{Kind: "common", Skip: 2500, Limit: 7}
	want, err := o.Jobs(t.Context(), f)
	if err != nil {
		t.Fatal(err)
	}
	page, err := o.FirstPage(t.Context(), f, 5000)
	if err != nil || len(want) != 7 || len(page.Jobs) != 7 || page.Jobs[0].ID != want[0].ID || page.Next != want[6].ID || page.Skip != 0 {
		t.Errorf("page = %+v, %v; want %d jobs from %s on", page, err, len(want), want[0].ID)
	}
}

// What has no index is read in rounds, whatever else the filter says: one statement would
// read all there is.
func TestSparseFiltersAreReadInRounds(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	storeMixed(t, db, 30)
	for name, f := range map[string]operator.Filter{
		"a kind":               {Kind: "absent"},
		"a kind and an offset": {Kind: "absent", Skip: 1},
		"the root tenant":      {Tenant: outbox.RootTenant},
	} {
		var plans []string
		if _, err := operator.New(db).Planned(&plans).Page(t.Context(), f); err != nil || len(plans) < 2 {
			t.Errorf("%s: %d statements by index, %v; want where a round ends and its jobs", name, len(plans), err)
		}
	}
}

// A page of a filter that few of many jobs meet ends after a part of them.
func TestAPageOfFewAmongManyIsShort(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	storeMixed(t, db, 3000)
	page, err := o.FirstPage(t.Context(), operator.Filter{Kind: "absent"}, 100)
	if err != nil || len(page.Jobs) > 0 || page.Next.IsZero() {
		t.Errorf("page = %+v, %v; want none of the jobs and where to go on", page, err)
	}
	if page, err = o.Page(t.Context(), operator.Filter{}); err != nil || len(page.Jobs) != operator.DefaultLimit || page.Next != page.Jobs[operator.DefaultLimit-1].ID {
		t.Errorf("the newest: %d jobs, next %s, %v", len(page.Jobs), page.Next, err)
	}
}

// Row-level security keeps statistics from the server, which then believes that it is
// better to read all jobs.
func TestListsOfATiedLoginScanIndexes(t *testing.T) {
	t.Parallel()
	_, db := newRig(t)
	storeMixed(t, db, 4_000)
	exec(t, db, `ANALYZE outbox.jobs, outbox.history`)
	var plans []string
	o := operator.New(pgtest.Login(t, db, "outbox_api")).Planned(&plans)
	ctx := operator.WithTenant(t.Context(), outbox.RootTenant)
	if page, err := o.Page(ctx, operator.Filter{Statuses: []outbox.Status{outbox.Pending}}); err != nil || len(page.Jobs) != operator.DefaultLimit {
		t.Fatalf("%d jobs, %v", len(page.Jobs), err)
	}
	if _, err := o.DeadLetterGroups(ctx, operator.DeadLetterFilter{}, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := o.Keys(ctx, operator.KeyFilter{}); err != nil {
		t.Fatal(err)
	}
	if len(plans) < 4 {
		t.Fatalf("%d statements were planned", len(plans))
	}
	for _, plan := range plans {
		// What nobody has asked for does not run, and may be planned at any price.
		unasked := strings.Contains(plan, "One-Time Filter: false")
		for line := range strings.Lines(plan) {
			if strings.Contains(line, "Seq Scan on jobs") && !(unasked && strings.Contains(line, "cost=10000000000")) || strings.Contains(line, "ERROR") {
				t.Errorf("all jobs are read:\n%s", plan)
				break
			}
		}
	}
}

var (
	scanned = regexp.MustCompile(`(?:Index|Index Only|Seq|Heap) Scan .*\(actual rows=([0-9.]+) loops=(\d+)\)`)
	removed = regexp.MustCompile(`Rows Removed by (?:Filter|Index Recheck): (\d+)`)
)

// rowsRead returns how many rows of tables a plan read, including those that it left out.
func rowsRead(t *testing.T, plan string) (read int) {
	t.Helper()
	loops := 1.0
	for line := range strings.Lines(plan) {
		if m := scanned.FindStringSubmatch(line); m != nil {
			rows, _ := strconv.ParseFloat(m[1], 64) // as the expression says
			loops, _ = strconv.ParseFloat(m[2], 64)
			read += int(rows * loops)
		} else if m := removed.FindStringSubmatch(line); m != nil {
			rows, _ := strconv.ParseFloat(m[1], 64)
			read += int(rows * loops)
		}
	}
	if !strings.Contains(plan, "actual rows=") {
		t.Errorf("what was read is not known:\n%s", plan)
	}
	return read
}

// storeForeign stores 10 open jobs, 10 dead letters and 10 closed jobs of a tenant among 3000 of each that belong to
// another one, a millisecond apart.
func storeForeign(t *testing.T, db outbox.DB, own, foreign outbox.ID) {
	t.Helper()
	exec(t, db, `
		WITH mixed AS MATERIALIZED (
			SELECT i, overlay(outbox.uuid_v7()::text PLACING
			           regexp_replace(lpad(to_hex(1795000000000 + i), 12, '0'), '^(.{8})', '\1-') FROM 1 FOR 13)::uuid AS id,
			       CASE WHEN i / 3 % 300 = 7 THEN $1::uuid ELSE $2::uuid END AS tenant
			FROM generate_series(1, 9000) AS i
		), open AS (
			INSERT INTO outbox.jobs (id, tenant_id, kind, payload, status)
			SELECT id, tenant, 'mail', '', CASE WHEN i % 3 = 0 THEN 'dead' ELSE 'pending' END::outbox.job_status FROM mixed WHERE i % 3 < 2)
		INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
		SELECT id, tenant, now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'default', 'mail', '', 'text/plain' FROM mixed WHERE i % 3 = 2`, own, foreign)
	exec(t, db, `ANALYZE outbox.jobs, outbox.history`)
}

// However many jobs other tenants have, a statement of a tenant's list passes over so many of them as a round is meant
// to, and the pages are the tenant's list. What they say about the others' ids is a time.
func TestARoundOfATenantIsBounded(t *testing.T) {
	t.Parallel()
	const round = 100
	for name, tenant := range map[string]outbox.ID{"a tenant": outbox.NewID(), "the root tenant": outbox.RootTenant} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, db := newRig(t)
			storeForeign(t, db, tenant, outbox.NewID())
			ctx := operator.WithTenant(t.Context(), tenant)
			var plans []string
			o := operator.New(pgtest.Login(t, db, "outbox_api")).Planned(&plans)
			walk := func(page func(before outbox.ID) ([]outbox.ID, outbox.ID, error)) (found []outbox.ID) {
				t.Helper()
				plans = nil
				for next := (outbox.ID{}); ; {
					ids, after, err := page(next)
					if err != nil {
						t.Fatal(err)
					}
					found = append(found, ids...)
					if next = after; next.IsZero() {
						break
					}
					if len(ids) == 0 && [10]byte(next[6:]) != [10]byte{} {
						t.Errorf("the next page begins at %s, the id of somebody's job", next)
					}
				}
				for _, plan := range plans {
					if read := rowsRead(t, plan); read > 3*(round+20) { // of three parts, and some rows beside them
						t.Errorf("%d rows are read in a round of %d:\n%s", read, round, plan)
					}
				}
				return found
			}
			all := walk(func(before outbox.ID) (ids []outbox.ID, next outbox.ID, err error) {
				page, err := o.FirstPage(ctx, operator.Filter{Before: before}, round)
				for _, j := range page.Jobs {
					ids = append(ids, j.ID)
				}
				return ids, page.Next, err
			})
			if want := owned(t, db, tenant); !slices.Equal(all, want) || len(want) != 30 {
				t.Errorf("%d jobs on the pages, want the tenant's %d", len(all), len(want))
			}
			dead := walk(func(before outbox.ID) (ids []outbox.ID, next outbox.ID, err error) {
				page, err := o.FirstLetters(ctx, operator.DeadLetterFilter{}, before, 5, round)
				for _, l := range page.DeadLetters {
					ids = append(ids, l.ID)
				}
				return ids, page.Next, err
			})
			if len(dead) != 10 {
				t.Errorf("%d dead letters on the pages, want the tenant's 10", len(dead))
			}
		})
	}
}

// owned returns the ids of a tenant's jobs, newest first.
func owned(t *testing.T, db outbox.DB, tenant outbox.ID) []outbox.ID {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT id FROM outbox.jobs WHERE tenant_id = $1 UNION ALL SELECT id FROM outbox.history WHERE tenant_id = $1 ORDER BY id DESC`, tenant)
	if err != nil {
		t.Fatal(err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[outbox.ID])
	if err != nil {
		t.Fatal(err)
	}
	return ids
}
