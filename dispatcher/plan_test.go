package dispatcher_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// plannerSettings forces the planner into every corner: one way to join, one way
// to scan, with and without sorting and materializing.
func plannerSettings() [][]string {
	all := [][]string{{}, {"plan_cache_mode = force_generic_plan"}}
	joins := []string{"nestloop", "hashjoin", "mergejoin"}
	scans := []string{"seqscan", "indexscan", "bitmapscan"}
	for _, join := range joins {
		for _, scan := range scans {
			var off []string
			for _, other := range slices.Concat(joins, scans) {
				if other != join && other != scan {
					off = append(off, "enable_"+other+" = off")
				}
			}
			all = append(all, off,
				append(slices.Clone(off), "enable_sort = off"),
				append(slices.Clone(off), "enable_material = off", "enable_hashagg = off"),
				append(slices.Clone(off), "enable_sort = off", "enable_material = off", "enable_memoize = off", "plan_cache_mode = force_generic_plan"),
				append(slices.Clone(off), "enable_tidscan = off", "enable_material = off", "enable_memoize = off"))
		}
	}
	return append(all,
		[]string{"enable_tidscan = off", "enable_indexonlyscan = off"},
		[]string{"cursor_tuple_fraction = 1", "random_page_cost = 1000", "cpu_index_tuple_cost = 1000"},
		[]string{"parallel_setup_cost = 0", "parallel_tuple_cost = 0", "min_parallel_table_scan_size = 0", "min_parallel_index_scan_size = 0"},
	)
}

// Whatever plans wrong statistics cause, a statement affects what it was asked for and nothing else.
func TestPlansNeverAffectMoreThanAsked(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	exec(t, db, `ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`)
	// As after a burst that was worked off: the statistics say that hundreds of pages hold one row, and the planner
	// still assumes that when the next burst has come.
	enqueueProbes(t, db, 5000, outbox.Options{Queue: "drained"})
	exec(t, db, `DELETE FROM outbox.jobs`)
	enqueue(t, db, probe{}, outbox.Options{})
	exec(t, db, `ANALYZE outbox.jobs`)
	for priority := range 5 {
		enqueueProbes(t, db, 1000, outbox.Options{Priority: priority})
	}
	config := db.Config().ConnConfig
	config.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // planned anew each time
	config.RuntimeParams["jit"] = "off"                          // it compiles forbidden plans
	conn, err := pgx.ConnectConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	settings := plannerSettings()
	for _, s := range settings {
		name := strings.Join(s, ", ")
		for _, set := range s {
			if _, err := conn.Exec(t.Context(), "SET "+set, pgx.QueryExecModeSimpleProtocol); err != nil {
				t.Fatal(err)
			}
		}
		claimExtendSettle(t, conn, name)
		if _, err := conn.Exec(t.Context(), "RESET ALL"); err != nil {
			t.Fatal(err)
		}
	}
	if len(settings) < 40 {
		t.Errorf("combinations = %d, want some forty", len(settings))
	}
	if n := ask[int](t, db, `SELECT reltuples::int FROM pg_class WHERE oid = 'outbox.jobs'::regclass`); n != 1 {
		t.Errorf("statistics say %d rows: they were to be stale", n)
	}
	if n := ask[int](t, db, `SELECT count(*) FROM outbox.attempts`); n != 2*len(settings) {
		t.Errorf("recorded attempts = %d, want %d", n, 2*len(settings))
	}
	if n := ask[int](t, db, `SELECT count(DISTINCT id) FROM outbox.history`); n != 2*len(settings) {
		t.Errorf("different jobs in the history = %d, want %d", n, 2*len(settings))
	}
}

// claimExtendSettle does each once, for seven jobs, and after each counts what it did.
func claimExtendSettle(t *testing.T, conn *pgx.Conn, name string) {
	t.Helper()
	want := countMoves(t, conn)
	check := func(what string) {
		t.Helper()
		if got := countMoves(t, conn); got != want {
			t.Fatalf("%s: after %s: %+v, want %+v", name, what, got, want)
		}
	}
	q := sqlgen.New(conn)
	claimed, err := q.ClaimJobs(t.Context(), claimParams("w", 7, 4, 3, 2, 1, 0, -1))
	if err != nil || len(claimed) != 7 {
		t.Fatalf("%s: claimed %d, %v; want 7", name, len(claimed), err)
	}
	want.running += 7
	check("claiming 7")
	for _, c := range claimed {
		if c.Priority != 4 {
			t.Fatalf("%s: claimed priority %d, want the highest, 4", name, c.Priority)
		}
	}

	var ids []pgtype.UUID
	var epochs []int64
	for _, c := range claimed {
		ids, epochs = append(ids, c.ID), append(epochs, c.Epoch)
	}
	wrong := slices.Clone(epochs) // the last one is a lease that was lost
	wrong[6]--
	if _, err := q.ExtendLeases(t.Context(), sqlgen.ExtendLeasesParams{Ids: ids[4:], Epochs: wrong[4:], LeaseTtl: interval(3 * time.Hour)}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	want.extended += 2
	check("extending 2 of 3")
	settled, err := q.SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{
		Ids: append(slices.Clone(ids[:2]), ids[6]), Epochs: append(slices.Clone(epochs[:2]), wrong[6]), Results: make([][]byte, 3),
	})
	if err != nil || len(settled) != 2 {
		t.Fatalf("%s: settled %d, %v; want 2", name, len(settled), err)
	}
	want.running, want.succeeded = want.running-2, want.succeeded+2
	check("2 of 3 succeed")
	settled, err = q.SettleUnfinished(t.Context(), sqlgen.SettleUnfinishedParams{
		Ids: append(slices.Clone(ids[2:4]), ids[6]), Epochs: append(slices.Clone(epochs[2:4]), wrong[6]),
		Statuses:   []string{"retrying", "retrying", "retrying"},
		Delays:     []pgtype.Interval{interval(time.Hour), interval(time.Hour), interval(time.Hour)},
		ErrorCodes: []string{"a", "b", "c"}, ErrorMessages: []string{"a", "b", "c"}, Stacks: []string{"", "", ""},
	})
	if err != nil || len(settled) != 2 {
		t.Fatalf("%s: settled %d, %v; want 2", name, len(settled), err)
	}
	want.running, want.retrying = want.running-2, want.retrying+2
	check("2 of 3 fail")
}

// moves is how many jobs have gone where.
type moves struct{ running, succeeded, retrying, extended int }

func countMoves(t *testing.T, conn *pgx.Conn) (m moves) {
	t.Helper()
	err := conn.QueryRow(t.Context(), `
		SELECT count(*) FILTER (WHERE status = 'running'), (SELECT count(*) FROM outbox.history),
		       count(*) FILTER (WHERE status = 'retrying'), count(*) FILTER (WHERE lease_expires_at > now() + interval '2 hours')
		FROM outbox.jobs`).Scan(&m.running, &m.succeeded, &m.retrying, &m.extended)
	if err != nil {
		t.Fatal(err)
	}
	return m
}
