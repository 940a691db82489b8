package changefeed_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/changefeed"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestPositionsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var now changefeed.Position
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		now, err = changefeed.Now(t.Context(), tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	read, err := changefeed.ParsePosition(now.String())
	if err != nil || read.String() != now.String() || read.IsZero() {
		t.Errorf("ParsePosition(%s) = %s, %v", now, read, err)
	}
	for _, text := range []string{"", "x", now.String() + "A", now.String()[1:], strings.Repeat("A", 22), "AAAAAAAAAAH__________w", "AAAAAAAAAAF_________-A"} {
		if _, err := changefeed.ParsePosition(text); err == nil {
			t.Errorf("ParsePosition(%q) is taken", text)
		} else if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("ParsePosition(%q) = %v, want an InvalidError", text, err)
		}
	}
}

// List reads only the newest pages of the history, and not days of it, also with the statistics of a table that has
// grown since.
func TestALookReadsTheNewestPagesOfTheHistory(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const insert = `INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, finished_at)
		SELECT gen_random_uuid(), gen_random_uuid(), now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'q', 'k', convert_to(repeat('x', 200), 'UTF8'), 'application/json', t
		FROM generate_series($1::timestamptz, $2, '100 ms') AS t`
	var day string // the present day may have begun just now
	if err := db.QueryRow(t.Context(), `SELECT (now() AT TIME ZONE 'UTC')::date::text`).Scan(&day); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), insert, day+" 00:00+00", day+" 01:00+00"); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), `VACUUM ANALYZE outbox.history`); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(t.Context(), insert, day+" 01:00+00", day+" 01:01+00"); err != nil {
		t.Fatal(err)
	}
	// The test must not depend on the time of day.
	query := strings.Replace(sqlgen.ListChanges, "statement_timestamp() - interval '2 hours'", "'-infinity'", 1)
	var text []byte
	if err := db.QueryRow(t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+query, pgx.QueryExecModeExec, "3", "3", []int64{}, day+" 01:00:30+00", nil, 1000).Scan(&text); err != nil {
		t.Fatal(err)
	}
	var plan []struct{ Plan map[string]any }
	if err := json.Unmarshal(text, &plan); err != nil {
		t.Fatal(err)
	}
	if read := historyRows(plan[0].Plan); read < 1 || read > 10_000 {
		t.Errorf("a look read %v rows of a history of 36 600, want the newest 300 and what is on their pages:\n%s", read, text)
	}
}

// historyRows returns how many rows the scans of the history read.
func historyRows(node map[string]any) (rows float64) {
	number := func(name string) float64 { n, _ := node[name].(float64); return n }
	if name := fmt.Sprint(node["Relation Name"]); strings.HasPrefix(name, "history") {
		rows = (number("Actual Rows") + number("Rows Removed by Filter") + number("Rows Removed by Index Recheck")) * number("Actual Loops")
	}
	children, _ := node["Plans"].([]any)
	for _, child := range children {
		rows += historyRows(child.(map[string]any))
	}
	return rows
}

// begin returns the position where a reader begins.
func begin(t *testing.T, db *pgxpool.Pool) (p changefeed.Position) {
	t.Helper()
	inTx(t, db, func(tx pgx.Tx) (err error) {
		p, err = changefeed.Now(t.Context(), tx)
		return err
	})
	return p
}

func inTx(t *testing.T, db *pgxpool.Pool, fn func(pgx.Tx) error) {
	t.Helper()
	if err := pgx.BeginFunc(t.Context(), db, fn); err != nil {
		t.Fatal(err)
	}
}

func storeMail(t *testing.T, db outbox.DB) outbox.ID {
	t.Helper()
	id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "mail", Payload: []byte(`{}`)}, outbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// Changes that had committed are omitted from then on, and nothing else: not what a running transaction wrote under
// savepoints, of which there are more here than a snapshot or the server's list of running transactions has room for.
func TestWhatHasNotCommittedIsNotPassed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	late, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	want := map[outbox.ID]bool{storeMail(t, late): true}
	p := begin(t, db) // the horizon is late's from here on
	for range 80 {
		if err := pgx.BeginFunc(t.Context(), late, func(tx pgx.Tx) error {
			want[storeMail(t, tx)] = true
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		storeMail(t, db) // is passed
	}
	look := func() (found map[outbox.ID]bool) {
		t.Helper()
		found = map[outbox.ID]bool{}
		inTx(t, db, func(tx pgx.Tx) error {
			changes, after, _, err := changefeed.List(t.Context(), tx, outbox.ID{}, p, 1000)
			for _, c := range changes {
				found[c.ID] = true
			}
			p = after
			return err
		})
		return found
	}
	pass := func() {
		t.Helper()
		inTx(t, db, func(tx pgx.Tx) error {
			committed, err := changefeed.FindCommitted(t.Context(), tx, p)
			p = p.Without(committed)
			return err
		})
	}
	if found := look(); len(found) != 80 {
		t.Fatalf("found %d, want the 80 that have committed", len(found))
	}
	pass()
	if found := look(); len(found) != 0 {
		t.Errorf("found %d that were passed", len(found))
	}
	id := storeMail(t, db)
	if found := look(); len(found) != 1 || !found[id] {
		t.Errorf("found %v, want %s", found, id)
	}
	pass() // what was not committed the first time still is not
	if found := look(); len(found) != 0 {
		t.Errorf("found %d that were passed", len(found))
	}
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if found := look(); !maps.Equal(found, want) {
		t.Errorf("found %d, want the %d that committed late", len(found), len(want))
	}
}

// A glance reads no page of any table, and notices every commit, including one of a transaction that was not the latest
// to begin.
func TestASnapshotKnowsWhetherAnythingHasCommitted(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	glance := func() (g changefeed.Snapshot) {
		t.Helper()
		inTx(t, db, func(tx pgx.Tx) (err error) {
			g, err = changefeed.TakeSnapshot(t.Context(), tx)
			return err
		})
		return g
	}
	late, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = late.Rollback(context.WithoutCancel(t.Context())) }()
	storeMail(t, late)
	storeMail(t, db)
	before := glance()
	same := before.SameAs(glance())
	// Other tests write in the same cluster.
	for begun := time.Now(); !same && time.Since(begun) < time.Minute; same = before.SameAs(glance()) {
		before = glance()
	}
	if !same {
		t.Error("two glances with nothing in between are never the same")
	}
	before = glance()
	if err := late.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if glance().SameAs(before) || (changefeed.Snapshot{}).SameAs(changefeed.Snapshot{}) {
		t.Error("a commit was not seen")
	}
	before = glance()
	for begun := time.Now(); glance().LikelySameAs(before); { // the server adds it up at its leisure
		storeMail(t, db)
		if time.Since(begun) > time.Minute {
			t.Fatal("jobs that were enqueued for a minute were not seen")
		}
	}
	var text []byte
	for range 2 { // the first time it has to load the functions
		if err := db.QueryRow(t.Context(), `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) `+sqlgen.FindPosition).Scan(&text); err != nil {
			t.Fatal(err)
		}
	}
	var plan []struct{ Plan map[string]any }
	if err := json.Unmarshal(text, &plan); err != nil {
		t.Fatal(err)
	}
	if hit, read := plan[0].Plan["Shared Hit Blocks"], plan[0].Plan["Shared Read Blocks"]; hit != 0.0 || read != 0.0 {
		t.Errorf("a glance read %v pages:\n%s", hit, text)
	}
}
