package docs_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/app"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

var update = flag.Bool("update", false, "write the parts of pages that are generated")

func TestMain(m *testing.M) { pgtest.Main(m) }

// tables says of each table what a row is, and what removes it.
var tables = map[string][2]string{
	"attempts":         {"a failed attempt", "as late as the closed job that is kept longest"},
	"audit":            {"an act of a person or a program", "after a year"},
	"audit_chain":      {"the hash of an act, linked to the one before", "with the act"},
	"builds":           {"a build that workers ran, from when", "after 14 days"},
	"chores":           {"a chore of the reaper, and when it was last done", "never; a handful"},
	"death_hooks":      {"a kind whose deaths have a hook", "by you"},
	"ended_sessions":   {"a session of the console that was ended, hashed", "when others end theirs, once its cookie has expired"},
	"events":           {"a published event", "by the day, once every sink has read it and its retention is over"},
	"freed_keys":       {"nothing: rows live within one transaction", "at its commit"},
	"held_messages":    {"a message that a sink refused, or one behind it", "when its job is closed"},
	"history":          {"a closed job", "by the day, once every job of the day is past its retention"},
	"idempotency_keys": {"the first job with such a key", "with the job"},
	"inbox":            {"a message that a consumer has handled", "after 14 days"},
	"inbox_positions":  {"how far a consumer has come in a partition", "never; one for each"},
	"job_logs":         {"a line of a job's own log, 200 for each at most", "with its job"},
	"job_steps":        {"what a step has returned", "with its job"},
	"jobs":             {"an open job, dead letters included", "when it is closed: it moves to history"},
	"keys":             {"a key that a claim has seen", "when no open job bears it"},
	"lease_extensions": {"a lease that was extended while its job's row was locked", "with the lease"},
	"measured":         {"a minute that was counted", "after 14 days"},
	"measured_hours":   {"an hour that was counted", "after 14 days"},
	"measures_hours":   {"what an hour had of a tenant, queue and kind", "after 14 days"},
	"measures":         {"what a minute had of a tenant, queue and kind: a hundred rows at most", "after 14 days"},
	"operations":       {"an act on many jobs", "90 days after its end, or after it was stopped"},
	"operation_jobs":   {"an open job that an act on many is still to do", "when it is done, or with its operation"},
	"progress":         {"how far a job is, a checkpoint", "with its job"},
	"queue_usage":      {"what a limited queue has used", "never"},
	"queues":           {"a queue that is paused or limited", "never"},
	"replays":          {"a replay of events to one sink", "90 days after its end"},
	"saved_views":      {"a search of jobs that has a name in the console, 50 of each person", "by its person"},
	"schedules":        {"a schedule", "by you"},
	"schema_files":     {"a file that made the schema, with its SHA-256", "never"},
	"schema_version":   {"a migration, of goose", "never"},
	"sinks":            {"a broker, and how far it has got", "by `posthaste relay remove`"},
	"tokens":           {"a token of the API, hashed", "by you"},
	"workers":          {"a dispatcher that runs, or did an hour ago", "an hour after it was last seen"},
}

// TestPostgresPageHasTheSchema compares the page for database administrators with the schema. With -update it writes
// what differs.
func TestPostgresPageHasTheSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	rows := query(t, db, `
		SELECT relname, relkind = 'p', coalesce(array_to_string(reloptions, ', '), '')
		FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition ORDER BY relname`)
	var listed strings.Builder
	listed.WriteString("| table | a row is | it is removed | storage |\n| --- | --- | --- | --- |\n")
	for _, row := range rows {
		name, storage := row[0].(string), row[2].(string)
		if row[1].(bool) {
			storage = "a partition a day"
		}
		of, ok := tables[name]
		if !ok {
			t.Errorf("say in docs/schema_test.go what a row of outbox.%s is, and what removes it", name)
		}
		fmt.Fprintf(&listed, "| `%s` | %s | %s | %s |\n", name, of[0], of[1], strings.ReplaceAll(storage, "autovacuum_", "av "))
	}
	compare(t, "operate/postgres.md", "tables", listed.String())

	rows = query(t, db, `
		SELECT t.relname, i.relname, regexp_replace(pg_get_indexdef(i.oid), '^CREATE (UNIQUE )?INDEX \S+ ON (ONLY )?\S+ USING ', '\1'), x.indisprimary
		FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS t ON t.oid = x.indrelid
		WHERE t.relnamespace = 'outbox'::regnamespace AND NOT t.relispartition ORDER BY 1, 2`)
	var indexes strings.Builder
	indexes.WriteString("| table | index | of |\n| --- | --- | --- |\n")
	for _, row := range rows {
		of := strings.NewReplacer("'00000000-0000-0000-0000-000000000001'::uuid", "root", "::outbox.job_status", "", "::text", "", "|", `\|`).Replace(row[2].(string))
		fmt.Fprintf(&indexes, "| `%s` | `%s` | `%s` |\n", row[0], row[1], of)
	}
	compare(t, "operate/postgres.md", "indexes", indexes.String())

	// What another role than the owner may call is for users, but for what our own statements call.
	rows = query(t, db, `
		SELECT proname, pg_get_function_arguments(oid), pg_get_function_result(oid) FROM pg_proc
		WHERE pronamespace = 'outbox'::regnamespace AND proname = ANY ($1) ORDER BY proname`,
		[]string{"enqueue", "publish", "cancel", "release", "unblock_key", "current_tenant", "uuid_v7", "secure", "ensure_days", "create_schedule", "change_schedule", "delete_schedule"})
	var functions strings.Builder
	for _, row := range rows {
		functions.WriteString(describe(t, row[0].(string), row[1].(string), row[2].(string)))
	}
	compare(t, "reference/sql.md", "functions", functions.String())

	rows = query(t, db, `
		SELECT c.relname, string_agg('`+"`' || a.attname || '`"+` ' || format_type(a.atttypid, a.atttypmod), ', ' ORDER BY attnum)
		FROM pg_class AS c JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind = 'v' GROUP BY 1 ORDER BY 1`)
	var views strings.Builder
	for _, row := range rows {
		is, ok := sqlViews[row[0].(string)]
		if !ok {
			t.Errorf("describe outbox.%s in docs/sql_test.go", row[0])
		}
		fmt.Fprintf(&views, "### outbox.%s\n\n%s\n\n%s\n\n", row[0], strings.Join(wrapped(is), "\n"),
			strings.Join(wrapped("Columns: "+row[1].(string)), "\n"))
	}
	compare(t, "reference/sql.md", "views", views.String())
}

// wrapped breaks a text into lines of 120 columns.
func wrapped(text string) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && len(line)+1+len(word) > 120 {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimLeft(line+" "+word, " ")
	}
	return append(lines, line)
}

func query(t *testing.T, db *pgxpool.Pool, sql string, args ...any) [][]any {
	t.Helper()
	rows, err := db.Query(t.Context(), sql, args...)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) ([]any, error) { return row.Values() })
	if err != nil || len(all) == 0 {
		t.Fatalf("%d rows, %v: %s", len(all), err, sql)
	}
	return all
}

// compare holds the part of a page between <!-- generated: NAME --> and <!-- end --> against what it should be.
func compare(t *testing.T, page, name, want string) {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), "<!-- generated: "+name+" -->\n\n")
	got, after, ends := strings.Cut(rest, "<!-- end -->")
	if !begins || !ends {
		t.Fatalf("%s has no part <!-- generated: %s --> … <!-- end -->", page, name)
	}
	want = strings.TrimRight(want, "\n") + "\n\n"
	if got == want {
		return
	}
	if *update {
		text := before + "<!-- generated: " + name + " -->\n\n" + want + "<!-- end -->" + after
		if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	for line := range strings.Lines(want) {
		if !strings.Contains(got, line) {
			t.Errorf("%s lacks: %s", page, line)
		}
	}
	t.Errorf("%s, %s: differs from the schema; go test ./docs -update writes it", page, name)
}

// TestPostgresPageSaysHowMuchDiskAJobTakes measures what the page computes with: bytes of a closed job in the history,
// indexes included.
func TestPostgresPageSaysHowMuchDiskAJobTakes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const jobs = 10_000 // several sessions extend the tables at once, each by more than it needs
	const size = `SELECT sum(pg_total_relation_size(relid))::bigint FROM pg_partition_tree('outbox.history') WHERE isleaf`
	before := query(t, db, size)[0][0].(int64)
	if _, err := db.Exec(t.Context(), `SELECT outbox.enqueue('disk', jsonb_build_object('text', repeat('x', 88))) FROM generate_series(1, $1)`, jobs); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var mux dispatcher.Mux
	mux.HandleRaw("disk", func(context.Context, *outbox.Claimed) error { return nil })
	done := make(chan error, 1)
	go func() { done <- app.Run(ctx, &mux, app.Config{DatabaseURL: db.Config().ConnString()}) }()
	for deadline := time.Now().Add(time.Minute); query(t, db, `SELECT count(*) FROM outbox.history`)[0][0] != int64(jobs); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the jobs were not handled")
		}
	}
	connections := query(t, db, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name IN ('posthaste', 'posthaste-listener')`)[0][0].(int64)
	stop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	measured := float64(query(t, db, size)[0][0].(int64)-before) / jobs
	t.Logf("%.0f bytes a job, %d connections", measured, connections)
	page, err := os.ReadFile("operate/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	stated := func(pattern string) (numbers []int64) {
		m := regexp.MustCompile(pattern).FindStringSubmatch(strings.Join(strings.Fields(string(page)), " "))
		if m == nil {
			t.Fatalf("docs/operate/postgres.md does not state %s", pattern)
		}
		for _, digits := range m[1:] {
			n, _ := strconv.ParseInt(digits, 10, 64)
			numbers = append(numbers, n)
		}
		return numbers
	}
	// What stalls for a moment, as on a busy machine, takes a connection or two more.
	of := stated(`therefore opens at most (\d+) connections, (\d+) of them while it is busy and nothing stalls`)
	if connections > of[0] || connections < of[1]-4 || connections > of[1]+2 {
		t.Errorf("the process has %d connections, docs/operate/postgres.md states %d of %d", connections, of[1], of[0])
	}
	said := float64(stated(`a closed job takes (\d+) bytes`)[0])
	if measured < said*0.8 || measured > said*1.2 {
		t.Errorf("a closed job takes %.0f bytes, docs/operate/postgres.md says %.0f", measured, said)
	}
}
