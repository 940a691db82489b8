package migrations_test

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/migrations"
)

// Each numbered file takes those locks that the page states, on tables that exist before it: pg_locks has them inside
// the file's transaction. -v prints them, and how long the file takes: with POSTHASTE_STALL_JOBS jobs and acts, else
// with 1000. Row locks and those of a read are not stated.
func TestLocksOfEachMigrationAreTaken(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(upgrading)
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := strconv.Atoi(cmp.Or(os.Getenv("POSTHASTE_STALL_JOBS"), "1000"))
	db := oldDatabase(t, rows)
	fillAudit(t, db, rows)
	files := 0
	for _, name := range numbered(t)[firstRelease:] {
		content, err := migrations.FS.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var locks string
		began := time.Now()
		err = pgx.BeginFunc(t.Context(), db, func(tx pgx.Tx) error {
			if _, err := tx.Exec(t.Context(), `CREATE TEMPORARY TABLE existed ON COMMIT DROP AS SELECT oid FROM pg_class`); err != nil {
				return err
			}
			began = time.Now()
			if _, err := tx.Conn().PgConn().Exec(t.Context(), string(content)).ReadAll(); err != nil {
				return err
			}
			return tx.QueryRow(t.Context(), taken).Scan(&locks)
		})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Logf("%s: %s; %s with %d rows", name, cmp.Or(locks, "nothing"), time.Since(began).Round(time.Millisecond), rows)
		stated := regexp.MustCompile("(?m)^\\| `" + name + "` \\| (.+) \\| .+ \\|$").FindStringSubmatch(string(page))
		if stated == nil {
			t.Fatalf("%s has no row for %s", upgrading, name)
		}
		if want := statedLocks(stated[1]); locks != want {
			t.Errorf("%s takes %q, the page states %q", name, locks, want)
		}
		files++
	}
	if files < 12 {
		t.Errorf("%d files: too few", files)
	}
}

// taken returns the locks of this transaction that are stronger than those of reads and writes of rows, on tables that
// existed before, those of partitions as ones of their table: "MODE on TABLE and TABLE".
const taken = `
	SELECT coalesce(string_agg(DISTINCT mode || ' on ' || name, ' and ' ORDER BY mode || ' on ' || name), '') FROM (
		SELECT upper(trim(regexp_replace(replace(l.mode, 'Lock', ''), '([A-Z])', ' \1', 'g'))) AS mode,
			coalesce(i.inhparent, l.relation)::regclass::text AS name
		FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_inherits i ON i.inhrelid = l.relation
		WHERE l.pid = pg_backend_pid() AND c.relkind IN ('r', 'p') AND c.relnamespace = 'outbox'::regnamespace
			AND l.relation IN (SELECT oid FROM existed)
			AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')) AS strong`

// statedLocks returns what a row of the page states as taken would.
func statedLocks(says string) string {
	mode, tables, found := strings.Cut(says, " on ")
	if !found {
		return ""
	}
	var all []string
	for _, table := range regexp.MustCompile(`outbox\.\w+`).FindAllString(tables, -1) {
		all = append(all, fmt.Sprintf("%s on %s", mode, table))
	}
	slices.Sort(all)
	return strings.Join(all, " and ")
}
