package dispatcher

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// scans lists the statements that may read a table from end to end, with the reason.
var scans = map[string]string{
	"ListChanges jobs":          "a page: what is new has no index",
	"SampleDepth jobs":          "a chore: it counts them all",
	"ListKeys jobs":             "a page of what has a key",
	"ListKeys keys":             "a page of them",
	"CountOpenJobs jobs":        "a page: it counts them all",
	"QueueIsKnown jobs":         "a person's act, on a name that only SQL by hand can have given",
	"KindsWithoutHandler jobs":  "a page of what is due",
	"ListUnavailableKinds jobs": "a page: what has been unavailable has no index",
	"MeasureQueue jobs":         "what runs when a limit is set is looked for in the index of leases, once",
	"SurveyKinds jobs":          "a page: what has been unavailable has no index",
	"ListBlockingLetters jobs":  "a preview of an act: where there are few jobs it reads the index of dead letters",
	"RemoveSink jobs":           "an operator's act, of whose messages some are open jobs: each is looked up by its id",
	"ReadAuditChain audit":      "the chain is read from its beginning",
	"ListMarks audit":           "the newest, up to a number",
}

// chores of the reaper run in sessions that let the server choose how to read much.
var chores = []string{"Measure", "TrimAttempts", "TrimDeadLetters"}

// statements returns sqlc's statements by name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../internal/sqlgen/*.sql.go")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if c, ok := n.(*ast.ValueSpec); ok && len(c.Values) == 1 {
				if text, ok := c.Values[0].(*ast.BasicLit); ok && strings.HasPrefix(text.Value, "`-- name:") {
					found[c.Names[0].Name] = strings.Trim(text.Value, "`")
				}
			}
			return true
		})
	}
	if len(found) < 50 {
		t.Fatalf("%d statements found", len(found))
	}
	return found
}

var placeholder = regexp.MustCompile(`\$(\d+)`)

// plan is the plan that the server would keep for a statement.
type plan struct {
	NodeType  string `json:"Node Type"`
	Relation  string `json:"Relation Name"`
	Index     string `json:"Index Name"`
	IndexCond string `json:"Index Cond"`
	TidCond   string `json:"TID Cond"`
	Plans     []plan
}

// scanned lists the tables that the plan reads without asking for certain rows, and how.
func (p plan) scanned() map[string]string {
	found := map[string]string{}
	if strings.HasSuffix(p.NodeType, "Scan") && p.IndexCond == "" && p.TidCond == "" {
		switch p.Relation {
		case "jobs", "keys", "attempts", "audit":
			found[p.Relation] = p.NodeType + " " + p.Index
		}
	}
	for _, part := range p.Plans {
		maps.Copy(found, part.scanned())
	}
	return found
}

func explain(t *testing.T, conn *pgx.Conn, name, sql string) plan {
	t.Helper()
	args := 0
	for _, m := range placeholder.FindAllStringSubmatch(sql, -1) {
		n, _ := strconv.Atoi(m[1])
		args = max(args, n)
	}
	statement := strings.ToLower(name)
	if _, err := conn.Prepare(t.Context(), statement, sql); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	execute := "EXPLAIN (FORMAT JSON) EXECUTE " + statement
	if args > 0 {
		execute += " (" + strings.TrimSuffix(strings.Repeat("NULL,", args), ",") + ")"
	}
	var text string
	if err := conn.QueryRow(t.Context(), execute, pgx.QueryExecModeSimpleProtocol).Scan(&text); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var plans []struct{ Plan plan }
	if err := json.Unmarshal([]byte(text), &plans); err != nil {
		t.Fatal(err)
	}
	return plans[0].Plan
}

// A queue that is mostly empty is analyzed while it is empty, and the server then assumes that a scan of a whole index
// of the table costs as much as a single lookup. The plan lives as long as the session, or until the table is analyzed
// again. A burst comes before that: a settlement that scans takes longer with each waiting job, until it takes longer
// than a lease; see queries/settle.sql.
func TestNoStatementScansWhatItDoesNotAskFor(t *testing.T) {
	t.Parallel()
	conn := prepared(t, pgtest.New(t))
	if _, err := conn.Exec(t.Context(), `ANALYZE`); err != nil {
		t.Fatal(err)
	}
	all, seen := statements(t), map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for table, how := range explain(t, conn, name, all[name]).scanned() {
			seen[name+" "+table] = true
			if scans[name+" "+table] == "" && !slices.Contains(chores, name) {
				t.Errorf("%s scans %s: %s", name, table, how)
			}
		}
	}
	for name := range scans {
		if !seen[name] {
			t.Errorf("%s is listed as one that scans and does not any more", name)
		}
	}
}

// A statement's plan does not show what functions do. So the test counts how many rows an index fetched, in a burst of
// which the session knows nothing.
func TestABurstAfterAQuietTimeIsNotScanned(t *testing.T) {
	t.Parallel()
	const burst = 5000
	db := pgtest.New(t)
	conn := prepared(t, db)
	q := sqlgen.New(conn)
	none := []pgtype.UUID{pgvalue.UUID(outbox.NewID())}
	acts := map[string]func(id pgtype.UUID) error{
		"settle": func(id pgtype.UUID) error {
			_, err := q.SettleSucceeded(t.Context(), sqlgen.SettleSucceededParams{Ids: []pgtype.UUID{id}, Epochs: []int64{1}, Results: [][]byte{nil}})
			return err
		},
		"settle in place": func(id pgtype.UUID) error {
			_, err := q.SettleInPlace(t.Context(), sqlgen.SettleInPlaceParams{
				Places: []pgtype.TID{{Valid: true}}, Ids: []pgtype.UUID{id}, Epochs: []int64{1},
			})
			return err
		},
		"settle with events": func(id pgtype.UUID) error {
			_, err := q.SettleStreamed(t.Context(), sqlgen.SettleStreamedParams{Ids: []pgtype.UUID{id}, Epochs: []int64{1}, Results: [][]byte{nil}})
			return err
		},
		"close": func(id pgtype.UUID) error {
			_, err := conn.Exec(t.Context(), `SELECT outbox.close_jobs(ARRAY[$1]::uuid[], '{1}', '{cancelled}')`, id)
			return err
		},
		"promote": func(pgtype.UUID) error {
			_, err := conn.Exec(t.Context(), `SELECT outbox.promote_keys(ARRAY[$1]::uuid[], '{default}', '{key-7}', '{1}')`, pgvalue.UUID(outbox.RootTenant))
			return err
		},
		"promote what is gone": func(pgtype.UUID) error {
			_, err := conn.Exec(t.Context(), `SELECT outbox.promote_keys(ARRAY[$1]::uuid[], '{default}', '{key-0}', '{1}')`, pgvalue.UUID(outbox.RootTenant))
			return err
		},
		"sweep": func(pgtype.UUID) error {
			_, err := conn.Exec(t.Context(), `SELECT outbox.promote_keys(ARRAY[$1]::uuid[], '{default}', '{key-7}', '{1}', true)`, pgvalue.UUID(outbox.RootTenant))
			return err
		},
		"forget": func(pgtype.UUID) error {
			_, err := conn.Exec(t.Context(), `SELECT outbox.forget_keys(ARRAY[$1]::uuid[], '{default}', '{key-7}')`, pgvalue.UUID(outbox.RootTenant))
			return err
		},
	}
	run := func(sql string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	run(`ALTER TABLE outbox.jobs SET (autovacuum_enabled = off)`)
	run(`ALTER TABLE outbox.keys SET (autovacuum_enabled = off)`)
	run(`INSERT INTO outbox.keys (tenant_id, queue, key) VALUES ('00000000-0000-0000-0000-000000000001', 'default', 'key-7')`)
	run(`ANALYZE`)
	for name, act := range acts { // the session makes its plans
		if err := act(none[0]); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	run(`INSERT INTO outbox.keys (tenant_id, queue, key)
		SELECT '00000000-0000-0000-0000-000000000001', 'default', 'key-' || i FROM generate_series(1, ` + strconv.Itoa(burst) + `) AS i ON CONFLICT DO NOTHING`)
	run(`INSERT INTO outbox.jobs (id, kind, payload, status, epoch, attempt, run_at, started_at, lease_owner, lease_expires_at, key, ordered, line_position)
		SELECT gen_random_uuid(), 'test', '{}', CASE WHEN i % 2 = 0 THEN 'pending' ELSE 'running' END::outbox.job_status, 1, 1, now() - interval '1 minute', now(),
			CASE WHEN i % 2 = 1 THEN 'w' END, CASE WHEN i % 2 = 1 THEN now() END,
			CASE WHEN i % 3 > 0 THEN 'key-' || i END, CASE WHEN i % 3 = 1 THEN true END, CASE WHEN i % 3 = 1 THEN i END
		FROM generate_series(10, ` + strconv.Itoa(burst) + `) AS i`)
	for name, act := range acts {
		var id pgtype.UUID
		if err := db.QueryRow(t.Context(), `SELECT id FROM outbox.jobs WHERE status = 'running' AND key IS NULL LIMIT 1`).Scan(&id); err != nil {
			t.Fatal(err)
		}
		run(`BEGIN`)
		before := fetched(t, conn)
		if err := act(id); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := fetched(t, conn) - before; got > 50 {
			t.Errorf("%s: %d rows were fetched by an index, for one job among %d", name, got, burst)
		}
		run(`COMMIT`)
	}
}

// fetched returns how many rows of the jobs and keys this transaction has read so far.
func fetched(t *testing.T, conn *pgx.Conn) (rows int64) {
	t.Helper()
	if err := conn.QueryRow(t.Context(), `
		SELECT sum(coalesce(idx_tup_fetch, 0) + seq_tup_read) FROM pg_stat_xact_user_tables
		WHERE schemaname = 'outbox' AND relname IN ('jobs', 'keys')`).Scan(&rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// The same in a session of a producer or an operator, which keeps the plans that it has made.
func TestABurstIsNotScannedInACallersSession(t *testing.T) {
	t.Parallel()
	const burst = 2000
	db := pgtest.New(t)
	pooled, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer pooled.Release()
	conn := pooled.Conn()
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), sql, args...); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	const enqueue = `SELECT outbox.enqueue('test', key => 'key-' || i, ordered => i % 2 = 0) FROM generate_series($1::integer, $2) AS i`
	acts := map[string]string{
		"make room": `SELECT outbox.make_room('00000000-0000-0000-0000-000000000001', 'default', 'key-7', 'test', 1, 'replace-oldest', false)`,
		"cancel":    `SELECT outbox.cancel(max(id::text)::uuid) FROM seen`,
		"release":   `SELECT outbox.release(max(id::text)::uuid) FROM seen`,
		"unblock":   `SELECT outbox.unblock_key('00000000-0000-0000-0000-000000000001', 'default', 'key-9')`,
	}
	for _, table := range []string{"jobs", "keys", "freed_keys"} {
		run(`ALTER TABLE outbox.` + table + ` SET (autovacuum_enabled = off)`)
	}
	run(`SET plan_cache_mode = force_generic_plan`)
	run(`CREATE TEMPORARY TABLE seen (id uuid)`)
	run(`ANALYZE`)
	run(enqueue, 1, 2) // the session makes its plans
	for name, act := range acts {
		run(`TRUNCATE seen`)
		run(`INSERT INTO seen SELECT id FROM outbox.jobs WHERE key = 'key-1'`)
		run(act)
		if name == "cancel" {
			run(enqueue, 1, 1)
		}
	}
	read := func() (rows int64) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), `
			SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0))::bigint FROM pg_stat_xact_user_tables
			WHERE schemaname = 'outbox' AND relname IN ('jobs', 'keys', 'freed_keys')`).Scan(&rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	run(`BEGIN`)
	run(enqueue, 3, burst)
	before := read()
	run(`SET CONSTRAINTS ALL IMMEDIATE`)
	if got := read() - before; got > 10*burst {
		t.Errorf("a commit of %d jobs, half of them ordered, reads %d rows", burst, got)
	}
	run(`COMMIT`)
	run(`INSERT INTO outbox.jobs (id, kind, payload, status, attempt, epoch, failed_at)
		SELECT gen_random_uuid(), 'test', '{}', 'dead', 1, 2, now() FROM generate_series(1, $1::integer)`, burst)
	for name, act := range acts {
		run(`TRUNCATE seen`)
		if name == "release" {
			run(`INSERT INTO seen SELECT outbox.enqueue('test', key => 'key-13', hold => true)`)
		} else {
			run(`INSERT INTO seen SELECT id FROM outbox.jobs WHERE key = 'key-11'`)
		}
		run(`BEGIN`)
		before := read()
		run(act)
		run(`SET CONSTRAINTS ALL IMMEDIATE`)
		if got := read() - before; got > 100 {
			t.Errorf("%s: %d rows are read, for one job among %d", name, got, burst)
		}
		run(`COMMIT`)
	}
	run(`BEGIN`)
	before = read()
	var off int
	if err := conn.QueryRow(t.Context(), `SELECT count(outbox.cancel(id)) FROM (SELECT id FROM outbox.jobs ORDER BY id) AS open`).Scan(&off); err != nil || off < burst-10 {
		t.Fatalf("%d jobs are called off, %v", off, err)
	}
	run(`SET CONSTRAINTS ALL IMMEDIATE`)
	if got := read() - before; got > 50*burst {
		t.Errorf("%d jobs are called off in one transaction: %d rows are read", off, got)
	}
	run(`COMMIT`)
}
