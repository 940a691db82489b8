package operator_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestPositionsAreReadAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	var now operator.Position
	if err := pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) (err error) {
		now, err = operator.Now(t.Context(), tx)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	read, err := operator.ParsePosition(now.String())
	if err != nil || read.String() != now.String() || read.IsZero() {
		t.Errorf("ParsePosition(%s) = %s, %v", now, read, err)
	}
	for _, text := range []string{"", "x", now.String() + "A", now.String()[1:], strings.Repeat("A", 22), "AAAAAAAAAAH__________w", "AAAAAAAAAAF_________-A"} {
		if _, err := operator.ParsePosition(text); err == nil {
			t.Errorf("ParsePosition(%q) is taken", text)
		} else if _, ok := errors.AsType[*outbox.InvalidError](err); !ok {
			t.Errorf("ParsePosition(%q) = %v, want an InvalidError", text, err)
		}
	}
}

// The history is found by its newest pages: a look does not read days of it. The
// statistics are those of a table that has grown since.
func TestALookReadsTheNewestPagesOfTheHistory(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const insert = `INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type, finished_at)
		SELECT gen_random_uuid(), gen_random_uuid(), now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'q', 'k', convert_to(repeat('x', 200), 'UTF8'), 'application/json', t
		FROM generate_series($1::timestamptz, $2, '100 ms') AS t`
	var day string // the present one may have begun just now
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
	query := strings.Replace(sqlgen.ListChanges, "statement_timestamp() - interval '2 hours'", "'-infinity'", 1) // whatever time it is
	var text []byte
	if err := db.QueryRow(t.Context(), `EXPLAIN (ANALYZE, FORMAT JSON) `+query, pgx.QueryExecModeExec, "3", day+" 01:00:30+00", nil, 1000).Scan(&text); err != nil {
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

// historyRows is how many rows the scans of the history read.
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
