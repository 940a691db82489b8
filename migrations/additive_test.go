package migrations_test

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/release"
	"github.com/posthaste-dev/posthaste/migrations"
)

const (
	frozen    = "testdata/frozen.txt"
	upgrading = "../docs/operate/upgrading.md"
	// declaring is the first numbered file whose header says what it locks. What those before lock is on the page only.
	declaring = "00009"
)

func numbered(t *testing.T) []string {
	t.Helper()
	names, err := fs.Glob(migrations.FS, "*.sql")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func text(t *testing.T, name string) string {
	t.Helper()
	content, err := migrations.FS.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// A database that has applied a numbered file never applies another text of it. -update adds the
// files that are new; nothing but an editor changes or removes a line.
func TestNumberedFilesDoNotChange(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(frozen)
	if err != nil {
		t.Fatal(err)
	}
	sums := map[string]string{}
	for line := range strings.Lines(string(content)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	for _, name := range numbered(t) {
		got := fmt.Sprintf("%x", sha256.Sum256([]byte(text(t, name))))
		switch want, listed := sums[name]; {
		case !listed && *update:
			sums[name] = got
		case !listed:
			t.Errorf("%s lacks %s: go test ./migrations -update adds it, and then it is frozen", frozen, name)
		case got != want:
			t.Errorf("%s has changed, and databases have applied it: put what is new into a file with the next number", name)
		}
	}
	for name := range sums {
		if !slices.Contains(numbered(t), name) {
			t.Errorf("%s is gone, and databases have applied it", name)
		}
	}
	if *update {
		var list string
		for _, name := range slices.Sorted(maps.Keys(sums)) {
			list += sums[name] + "  " + name + "\n"
		}
		if err := os.WriteFile(frozen, []byte(list), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// The release before works on this schema: nothing that it uses goes away or is refused.
func TestMigrationsAreAdditive(t *testing.T) {
	t.Parallel()
	for _, name := range numbered(t)[firstRelease:] {
		for _, refused := range notAdditive(text(t, name)) {
			t.Errorf("%s: a numbered file only adds, and this is not known to: %s", name, refused)
		}
	}
}

func TestWhatDoesNotOnlyAddIsRefused(t *testing.T) {
	t.Parallel()
	for sql, additive := range map[string]bool{
		`CREATE TABLE outbox.x (a text NOT NULL); CREATE INDEX x_idx ON outbox.x (a)`:   true,
		`CREATE TYPE outbox.t AS ENUM ('a;b')`:                                          true,
		`ALTER TABLE outbox.jobs ADD COLUMN x boolean`:                                  true,
		`ALTER TABLE outbox.jobs ADD COLUMN x integer NOT NULL DEFAULT 0`:               true,
		`ALTER TABLE outbox.jobs ADD COLUMN x text, ADD COLUMN y text[] DEFAULT '{}'`:   true,
		`ALTER TABLE outbox.jobs SET (autovacuum_vacuum_threshold = 100)`:               true,
		`ALTER TYPE outbox.job_status ADD VALUE 'asleep'`:                               true,
		`CREATE TABLE outbox.x (a text); INSERT INTO outbox.x VALUES ('a; DROP')`:       true,
		"-- DROP TABLE outbox.jobs\nCREATE TABLE outbox.x (a text) -- ; DROP":           true,
		`DROP TABLE outbox.jobs`:                                                        false,
		`ALTER TABLE outbox.jobs DROP COLUMN hold`:                                      false,
		`ALTER TABLE outbox.jobs ADD COLUMN x text, DROP COLUMN hold`:                   false,
		`ALTER TABLE outbox.jobs ALTER COLUMN kind TYPE varchar`:                        false,
		`ALTER TABLE outbox.jobs RENAME COLUMN kind TO type`:                            false,
		`ALTER TABLE outbox.jobs ADD COLUMN x integer NOT NULL`:                         false,
		`ALTER TABLE outbox.jobs ADD COLUMN x uuid DEFAULT gen_random_uuid()`:           false,
		`ALTER TABLE outbox.jobs ADD COLUMN x text CHECK (x <> '')`:                     false,
		`ALTER TABLE outbox.jobs ADD COLUMN x text UNIQUE`:                              false,
		`ALTER TABLE outbox.jobs ADD COLUMN x bigint REFERENCES outbox.audit (id)`:      false,
		`ALTER TABLE outbox.jobs ADD COLUMN x bigint GENERATED ALWAYS AS IDENTITY`:      false,
		`ALTER TABLE outbox.jobs ADD CONSTRAINT c CHECK (kind <> '')`:                   false,
		`ALTER TABLE outbox.x ADD CONSTRAINT c CHECK (octet_length(a) <= 9) NOT VALID`:  true,
		`ALTER TABLE outbox.x ADD CONSTRAINT c CHECK (octet_length(a) <= 9)`:            false,
		`CREATE INDEX audit_x_idx ON outbox.audit (act) WHERE act IS NOT NULL`:          true,
		`CREATE UNIQUE INDEX audit_x_idx ON outbox.audit (act)`:                         false,
		`CREATE INDEX jobs_x_idx ON outbox.jobs (kind)`:                                 false,
		`CREATE TRIGGER t BEFORE INSERT ON outbox.jobs EXECUTE FUNCTION outbox.f()`:     false,
		`CREATE TABLE outbox.x (a text); UPDATE outbox.jobs SET hold = false`:           false,
		`INSERT INTO outbox.jobs SELECT * FROM outbox.x`:                                false,
		`DO $$ BEGIN DROP TABLE outbox.jobs; END $$`:                                    false,
		`LOCK TABLE outbox.jobs`:                                                        false,
		`CREATE TABLE outbox.x (a text); CREATE INDEX jobs_x_idx ON outbox.jobs (kind)`: false,
	} {
		if refused := notAdditive("-- why\n-- +goose Up\n" + sql + ";\n"); (len(refused) == 0) != additive {
			t.Errorf("%s is taken as additive: %t, want %t", sql, !additive, additive)
		}
	}
}

var (
	quoted  = regexp.MustCompile(`(?s)'(?:[^']|'')*'|--[^\n]*`)
	spaces  = regexp.MustCompile(`\s+`)
	creates = regexp.MustCompile(`^CREATE (TABLE|TYPE|DOMAIN|SEQUENCE) (outbox\.\w+)`)
	// about are statements about a table that the same file creates.
	about = regexp.MustCompile(`^(?:CREATE (?:UNIQUE )?INDEX \w+ ON|INSERT INTO|ALTER TABLE) (outbox\.\w+)`)
	adds  = regexp.MustCompile(`^ALTER TABLE outbox\.\w+ (ADD COLUMN [^,()]+)(, ADD COLUMN [^,()]+)*$`)
	sets  = regexp.MustCompile(`^(ALTER TABLE outbox\.\w+ SET \([a-z_., =0-9]+\)|ALTER TYPE outbox\.\w+ ADD VALUE ''.*|COMMENT ON .*)$`)
	// limits are of what no client stores: NOT VALID reads no row.
	limits = regexp.MustCompile(`^ALTER TABLE outbox\.\w+ ADD CONSTRAINT \w+ CHECK \(octet_length\([a-z_:]+\) <= \d+\) NOT VALID$`)
	// acts are all that an index of the audit holds up, while it is made: no job.
	acts  = regexp.MustCompile(`^CREATE INDEX \w+ ON outbox\.audit \(`)
	never = regexp.MustCompile(`\b(CHECK|UNIQUE|REFERENCES|PRIMARY KEY|GENERATED|CONSTRAINT)\b`)
)

// notAdditive returns the statements of a file that are not of the few forms that are known to add
// only, and to need no more of the tables that are there than a change of the catalog.
func notAdditive(sql string) (refused []string) {
	made := map[string]bool{}
	sql = quoted.ReplaceAllStringFunc(sql, func(s string) string { // without what might look like SQL
		if strings.HasPrefix(s, "--") {
			return ""
		}
		return "''"
	})
	for statement := range strings.SplitSeq(sql, ";") {
		statement = strings.TrimSpace(spaces.ReplaceAllString(statement, " "))
		if statement == "" {
			continue
		}
		if m := creates.FindStringSubmatch(statement); m != nil {
			made[m[2]] = true
			continue
		}
		if m := about.FindStringSubmatch(statement); m != nil && made[m[1]] || sets.MatchString(statement) || limits.MatchString(statement) || acts.MatchString(statement) {
			continue
		}
		if adds.MatchString(statement) && !never.MatchString(statement) && !missesDefault(statement) {
			continue
		}
		refused = append(refused, statement)
	}
	return refused
}

// missesDefault reports whether a column that is added would need a value that there is not.
func missesDefault(statement string) bool {
	for column := range strings.SplitSeq(statement, ",") {
		if strings.Contains(column, "NOT NULL") && !strings.Contains(column, "DEFAULT") {
			return true
		}
	}
	return false
}

var header = regexp.MustCompile(`(?m)^-- Locks: (.+)\n-- A million rows: (.+)$`)

// The page has a row for each numbered file: what it locks, and how long it takes for a million
// rows. It is what the file's header says.
func TestLocksOfEachMigrationAreStated(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(upgrading)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(\\d{5}_\\w+\\.sql)` \\| (.+) \\| (.+) \\|$").FindAllStringSubmatch(string(page), -1) {
		rows[row[1]] = row[2:]
	}
	for _, name := range numbered(t) {
		row, says := rows[name], header.FindStringSubmatch(text(t, name))
		switch {
		case row == nil:
			t.Errorf("%s has no row for %s: what it locks, and how long it takes for a million rows", upgrading, name)
		case says == nil && name >= declaring:
			t.Errorf("%s: its header lacks lines that begin with \"-- Locks: \" and \"-- A million rows: \"", name)
		case says != nil && !slices.Equal(row, says[1:]):
			t.Errorf("%s says of %s %q, its header %q", upgrading, name, row, says[1:])
		}
	}
}

// The page and the changelog speak of the release that the schema is of, and of the one before it.
func TestTheReleaseOfTheSchemaIsInTheChangelog(t *testing.T) {
	t.Parallel()
	changelog, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(changelog), "\n## "+release.Name()) {
		t.Errorf("CHANGELOG.md has no heading for release %s, which the schema is of", release.Name())
	}
	if revision, _ := release.Floor(); revision != max(release.Revision-1, 1) {
		t.Errorf("the floor is %d, want the release before %d", revision, release.Revision)
	}
}
