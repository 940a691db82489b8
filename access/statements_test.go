package access_test

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

var update = flag.Bool("update", false, "write testdata/statements.golden")

const statementsGolden = "testdata/statements.golden"

// ourRoles are those that a process connects as.
var ourRoles = []string{"outbox_producer", "outbox_worker", "outbox_api", "outbox_reader"}

// statements returns all statements that this program ever sends, by name.
func statements(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../internal/sqlgen/*.sql.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d files, %v", len(files), err)
	}
	all := map[string]string{}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			spec, ok := node.(*ast.ValueSpec)
			if !ok || len(spec.Values) != 1 {
				return true
			}
			if literal, ok := spec.Values[0].(*ast.BasicLit); ok && strings.Contains(literal.Value, "-- name: ") {
				all[spec.Names[0].Name], err = strconv.Unquote(literal.Value)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// explain has the server prepare a statement for execution, which is when it
// checks privileges, and returns the plan.
func explain(t *testing.T, conn *pgx.Conn, name, sql string) (string, error) {
	t.Helper()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = tx.Rollback(t.Context())
		_, _ = conn.Exec(t.Context(), `DEALLOCATE "`+name+`"`)
	}()
	exec(t, tx, `SET LOCAL plan_cache_mode = force_generic_plan; SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off;
		SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off; SET LOCAL jit = off`) // as our sessions
	exec(t, tx, `PREPARE "`+name+`" AS `+sql)
	n := ask[int](t, tx, `SELECT coalesce(cardinality(parameter_types), 0) FROM pg_prepared_statements WHERE name = $1`, name)
	call := `"` + name + `"`
	if n > 0 {
		call += "(" + strings.TrimSuffix(strings.Repeat("NULL, ", n), ", ") + ")"
	}
	rows, _ := tx.Query(t.Context(), `EXPLAIN (COSTS OFF) EXECUTE `+call, pgx.QueryExecModeSimpleProtocol)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(lines, "\n"), err
}

// Which role may send which of our statements; what it then sees is row security's.
func TestStatementsOfEachRoleAreTheGoldenOnes(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	may := map[string][]string{}
	all := statements(t)
	for _, role := range ourRoles {
		conn, err := login(t, db, role, "*").Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		for name, sql := range all {
			_, err := explain(t, conn.Conn(), name, sql)
			switch sqlstate(err) {
			case "42501":
			case "":
				if err != nil {
					t.Errorf("%s as %s: %v", name, role, err)
				}
				may[name] = append(may[name], role)
			default:
				t.Errorf("%s as %s: %v", name, role, err)
			}
		}
	}
	var got strings.Builder
	for _, name := range slices.Sorted(maps.Keys(all)) {
		fmt.Fprintf(&got, "%s: %s\n", name, strings.Join(may[name], ", "))
	}
	if *update {
		if err := os.WriteFile(statementsGolden, []byte(got.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(statementsGolden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("go test ./access -update accepts this (-want +got):\n%s", diff)
	}
}

// conditions returns the lines of a plan, with what each asks of a row in the order of the alphabet: under row security
// those conditions that are leakproof are asked first.
func conditions(plan string) [][]string {
	var lines [][]string
	for line := range strings.SplitSeq(plan, "\n") {
		// A column of another collation is shown with a cast or without one, as the planner came to it.
		asked := strings.Split(strings.NewReplacer("(", "", ")", "", "::text", "").Replace(line), " AND ")
		if where, first, ok := strings.Cut(asked[0], "Filter: "); ok {
			asked = append(asked[1:], first)
			slices.Sort(asked)
			asked = append(asked, where)
		}
		lines = append(lines, asked)
	}
	return lines
}

// Row security costs a worker nothing: it gets the plan that a superuser gets, for
// whom there is none, so no policy is evaluated for any row that is read.
func TestAWorkersPlansAreThoseWithoutRowSecurity(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	free, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer free.Release()
	worker, err := login(t, db, "outbox_worker", "").Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer worker.Release()
	compared := 0
	for name, sql := range statements(t) {
		want, err := explain(t, free.Conn(), name, sql)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		got, err := explain(t, worker.Conn(), name, sql)
		if sqlstate(err) == "42501" {
			continue
		}
		compared++
		if diff := cmp.Diff(conditions(want), conditions(got)); diff != "" {
			t.Errorf("%s (-superuser +worker):\n%s", name, diff)
		}
	}
	if compared < 25 {
		t.Errorf("%d plans were compared, want at least those of the engine", compared)
	}
}
