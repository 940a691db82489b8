package migrations_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/goleak"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(pgtest.Wrap(m)) }

var update = flag.Bool("update", false, "write testdata/schema.golden")

const golden = "testdata/schema.golden"

// The schema at a glance, for reviews of a change.
func TestTheSchemaIsTheGoldenOne(t *testing.T) {
	t.Parallel()
	got := schema(t, pgtest.New(t), outline)
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("go test ./migrations -update accepts this (-want +got):\n%s", diff)
	}
}

func TestUpDownUpGivesTheSameSchema(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	up(t, db)
	want := schema(t, db, outline+bodies)
	if err := migrations.Down(t.Context(), db); err != nil {
		t.Fatal(err)
	}
	var left bool
	if err := db.QueryRow(t.Context(), `SELECT to_regnamespace('outbox') IS NOT NULL`).Scan(&left); err != nil || left {
		t.Errorf("after down the schema is there: %t, %v", left, err)
	}
	if err := migrations.Down(t.Context(), db); err != nil {
		t.Errorf("down once more: %v", err)
	}
	up(t, db)
	if diff := cmp.Diff(want, schema(t, db, outline+bodies)); diff != "" {
		t.Errorf("schema (-first up +second up):\n%s", diff)
	}
}

func TestDownRemovesNothingThatSomebodyMayMiss(t *testing.T) {
	t.Parallel()
	for made, want := range map[string]string{
		`SELECT outbox.enqueue('k')`:                                                                                                "open jobs",
		`SELECT outbox.cancel(outbox.enqueue('k'), 'ada')`:                                                                          "closed jobs, acts in the audit",
		`INSERT INTO outbox.inbox (consumer, message_id) VALUES ('c', '1')`:                                                         "messages that consumers have handled",
		`INSERT INTO outbox.inbox_positions (consumer, source, partition) VALUES ('c', 'topic', 0)`:                                 "positions of consumers",
		`INSERT INTO outbox.saved_views (tenant_id, person, name, query, saved_by) VALUES (gen_random_uuid(), '', 'n', 'q', 'ada')`: "saved views",
		`INSERT INTO outbox.queues (queue, paused_at) VALUES ('q', now())`:                                                          "paused or limited queues",
		`INSERT INTO outbox.queues (queue, max_running) VALUES ('q', 1)`:                                                            "paused or limited queues",
		`INSERT INTO outbox.sinks (sink, top) VALUES ('s', 7)`:                                                                      "positions of sinks",
		`CREATE VIEW public.mine AS SELECT id FROM outbox.keys_`:                                                                    "depend on them",
	} {
		db := pgtest.New(t)
		run(t, db, strings.ReplaceAll(made, "id FROM outbox.keys_", "queue FROM outbox.keys"))
		before := schema(t, db, outline+bodies)
		if err := migrations.Down(t.Context(), db); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("down after %s: %v, want an error that says %s", made, err, want)
		}
		if diff := cmp.Diff(before, schema(t, db, outline+bodies)); diff != "" {
			t.Errorf("down after %s (-before +after):\n%s", made, diff)
		}
	}
}

func TestManyProcessesMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	url := pgtest.NewEmpty(t).Config().ConnString()
	want := schema(t, pgtest.New(t), outline+bodies)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			db, err := pgxpool.New(t.Context(), url)
			if err != nil {
				t.Error(err)
				return
			}
			defer db.Close()
			if err := migrate.Up(t.Context(), db); err != nil {
				t.Error(err)
			}
			if state, err := migrations.Look(t.Context(), db); err != nil || state.Condition != migrations.Current {
				t.Errorf("after Up: %s, %v; want this build's", state, err)
			}
		})
	}
	wg.Wait()
	db, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if diff := cmp.Diff(want, schema(t, db, outline+bodies)); diff != "" {
		t.Errorf("schema (-migrated alone +migrated at once):\n%s", diff)
	}
}

func TestUpAgainChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	if _, err := db.Exec(t.Context(), `SELECT outbox.enqueue('k')`); err != nil {
		t.Fatal(err)
	}
	up(t, db)
	var jobs int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&jobs); err != nil || jobs != 1 {
		t.Errorf("got %d jobs, %v; want the one that was there", jobs, err)
	}
}

// On PostgreSQL 15 and later nobody but the database's owner may create anything in public.
func TestARoleThatMayOnlyCreateSchemasCanMigrate(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	migrator := asRole(t, db, `GRANT CREATE ON DATABASE %[2]I TO %[1]I; REVOKE CREATE ON SCHEMA public FROM PUBLIC`)
	up(t, migrator)
	if err := migrations.Down(t.Context(), migrator); err != nil {
		t.Error(err)
	}
	up(t, migrator)
}

// A role for which somebody has made the schema needs no privilege on the database.
func TestARoleThatMayNotCreateSchemasCanMigrateOneThatIsThere(t *testing.T) {
	t.Parallel()
	const made = `REVOKE CREATE ON DATABASE %[2]I FROM PUBLIC; REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE SCHEMA outbox AUTHORIZATION %[1]I`
	db := pgtest.NewEmpty(t)
	up(t, asRole(t, db, made))

	byHand := asRole(t, pgtest.NewEmpty(t), made)
	// Roles are those of all databases, so that other tests may hold the lock: the script says to apply it again.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		_, err := byHand.Exec(t.Context(), migrations.Script(0)) // without arguments: many statements at once
		if failed, ok := errors.AsType[*pgconn.PgError](err); ok && failed.Code == "55P03" && time.Now().Before(deadline) {
			continue
		}
		if err != nil {
			t.Error(err)
		}
		return
	}
}

func TestALesserRoleCanMakePartitionsWithinReason(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	lesser := asRole(t, db, `GRANT outbox_worker TO %[1]I`)
	var made int
	if err := lesser.QueryRow(t.Context(), `SELECT outbox.ensure_days(20)`).Scan(&made); err != nil || made == 0 {
		t.Errorf("made %d partitions, %v; want some", made, err)
	}
	for _, days := range []int{-1, 401} {
		if _, err := lesser.Exec(t.Context(), `SELECT outbox.ensure_days($1)`, days); err == nil {
			t.Errorf("ensure_days(%d) has no error", days)
		}
	}
}

// The schema may get another owner, as when a login is retired. Until the policies name the new one, functions that run
// as the owner see no rows: down must not take the schema for empty, and up mends it.
func TestAnotherOwnerOfTheSchema(t *testing.T) {
	t.Parallel()
	pgtest.New(t) // now the server has our roles, which lesser ones may not make
	db := pgtest.NewEmpty(t)
	const mayCreate = `GRANT CREATE ON DATABASE %[2]I TO %[1]I`
	before := asRole(t, db, mayCreate)
	up(t, before)
	after := asRoleNamed(t, db, "next_role_of_"+db.Config().ConnConfig.Database, mayCreate)
	run(t, db, `REASSIGN OWNED BY role_of_`+db.Config().ConnConfig.Database+` TO next_role_of_`+db.Config().ConnConfig.Database)
	noted := func() bool {
		notes, err := migrations.Notes(t.Context(), db)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(notes, func(n migrations.Note) bool { return contains(n.What, "owner", "REASSIGN OWNED") })
	}
	numbered := func() (n int) {
		run(t, db, `SELECT outbox.enqueue('k', key => 'k', ordered => true)`)
		if err := db.QueryRow(t.Context(), `SELECT count(line_position) FROM outbox.jobs`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if !noted() {
		t.Error("nothing is noted of an owner whom no policy names")
	}
	if n := numbered(); n != 0 {
		t.Errorf("%d jobs have a position: the functions see rows, and the test is about nothing", n)
	}
	if err := migrations.Down(t.Context(), after); err == nil || !contains(err.Error(), "open jobs") {
		t.Errorf("down as the new owner: %v, want that there are open jobs", err)
	}
	up(t, after)
	if noted() {
		t.Error("after up it is noted still")
	}
	if n := numbered(); n != 1 {
		t.Errorf("%d jobs have a position after up, want the one stored since", n)
	}
	if err := migrations.Down(t.Context(), after); err == nil || !contains(err.Error(), "open jobs") {
		t.Errorf("down after up: %v, want that there are open jobs", err)
	}
	for _, table := range []string{"jobs", "history", "inbox"} {
		var forced bool
		if err := db.QueryRow(t.Context(), `SELECT relforcerowsecurity FROM pg_class WHERE oid = to_regclass($1)`, "outbox."+table).Scan(&forced); err != nil || !forced {
			t.Errorf("row security of %s is forced after down was refused: %t, %v; want true", table, forced, err)
		}
	}
}

// A process that may not change policies starts all the same.
func TestUpOfALesserRoleLeavesAnotherOwnerAlone(t *testing.T) {
	t.Parallel()
	pgtest.New(t) // now the server has our roles, which lesser ones may not make
	db := pgtest.NewEmpty(t)
	database := db.Config().ConnConfig.Database
	owner := asRole(t, db, `GRANT CREATE ON DATABASE %[2]I TO %[1]I`)
	up(t, owner)
	_ = asRoleNamed(t, db, "next_role_of_"+database, `GRANT CREATE ON DATABASE %[2]I TO %[1]I`)
	worker := asRoleNamed(t, db, "worker_of_"+database, `GRANT outbox_worker TO %[1]I`)
	run(t, db, `REASSIGN OWNED BY role_of_`+database+` TO next_role_of_`+database)
	up(t, worker)
}

// asRole connects as a new role that has what grant says: %[1]I is the role, %[2]I
// the database.
func asRole(t *testing.T, db *pgxpool.Pool, grant string) *pgxpool.Pool {
	t.Helper()
	return asRoleNamed(t, db, "role_of_"+db.Config().ConnConfig.Database, grant)
}

func asRoleNamed(t *testing.T, db *pgxpool.Pool, role, grant string) *pgxpool.Pool {
	t.Helper()
	config := db.Config()
	database := config.ConnConfig.Database
	grant = strings.NewReplacer("%[1]I", pgx.Identifier{role}.Sanitize(), "%[2]I", pgx.Identifier{database}.Sanitize()).Replace(grant)
	if _, err := db.Exec(t.Context(), `CREATE ROLE `+pgx.Identifier{role}.Sanitize()+`; `+grant); err != nil {
		t.Fatal(err)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, `SET ROLE `+pgx.Identifier{role}.Sanitize())
		return err
	}
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		if _, err := db.Exec(context.Background(), `DROP OWNED BY `+role+`; DROP ROLE `+role); err != nil {
			t.Error(err)
		}
	})
	return pool
}

func TestWithoutAServerTheErrorSaysWhatWasTried(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := migrate.Up(ctx, db); err == nil || !strings.HasPrefix(err.Error(), "migrate: ") {
		t.Errorf("got %v, want an error of migrate", err)
	}
	if _, err := migrations.Look(ctx, db); err == nil {
		t.Error("Look has no error")
	}
}

var fileName = regexp.MustCompile(`^(\d{5}_[a-z][a-z_]*|(functions|views)/[a-z][a-z0-9_]*|takeover/24)\.sql$`)

func TestEveryFileIsNamedAndTellsWhy(t *testing.T) {
	t.Parallel()
	number := 0
	err := fs.WalkDir(migrations.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !fileName.MatchString(name) {
			t.Errorf("%s: want five digits and words, or a function's or view's name", name)
		}
		content, err := migrations.FS.ReadFile(name)
		text := string(content)
		if !strings.HasPrefix(text, "-- ") && !strings.HasPrefix(name, "views/") {
			t.Errorf("%s does not begin with a comment that tells why it is there", name)
		}
		if thing := strings.TrimSuffix(path.Base(name), ".sql"); strings.HasPrefix(name, "functions/") && strings.Count(text, "CREATE OR REPLACE FUNCTION outbox."+thing+"(") != 1 {
			t.Errorf("%s does not make one function of its name", name)
		}
		if !strings.Contains(name, "/") {
			// The numbers of changes that are made at the same time are agreed on: there may be a gap.
			before := number
			if number, err = strconv.Atoi(name[:5]); err != nil || number <= before {
				t.Errorf("%s comes after number %d, %v", name, before, err)
			}
			if !strings.Contains(text, "\n-- +goose Up\n") || strings.Contains(text, "-- +goose Down") {
				t.Errorf("%s lacks its Up, or has a Down, which nothing would run", name)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func up(t *testing.T, db *pgxpool.Pool) {
	t.Helper()
	if err := migrate.Up(t.Context(), db); err != nil {
		t.Fatal(err)
	}
}

// outline is one line for each thing that the migrations make in the schema outbox,
// which their own record is not. Partitions are left out, because their names are
// dates, and so is what PostgreSQL 15 and 18 write
// differently: the bodies of views, and NOT NULL as a constraint.
const outline = `
	WITH relations AS (
	    SELECT oid, relname AS name, relkind, reloptions
	    FROM pg_class
	    WHERE relnamespace = to_regnamespace('outbox') AND NOT relispartition AND relkind IN ('r', 'p', 'v') AND relname NOT IN ('schema_version', 'schema_files')
	)
	SELECT format('type %s: %s', typname, (SELECT string_agg(enumlabel, ', ' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = pg_type.oid))
	FROM pg_type
	WHERE typnamespace = to_regnamespace('outbox') AND typtype = 'e'
	UNION ALL
	SELECT format('%s %s:%s%s', CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END, name,
	    coalesce(' with ' || array_to_string(reloptions, ', '), ''), coalesce(' partition by ' || pg_get_partkeydef(oid), ''))
	FROM relations
	UNION ALL
	SELECT format('%s %s column %s: %s %s%s%s', CASE relkind WHEN 'v' THEN 'view' ELSE 'table' END, name, to_char(attnum, 'FM00'), attname, format_type(atttypid, atttypmod),
	    CASE WHEN attnotnull THEN ' not null' END, ' default ' || pg_get_expr(adbin, adrelid))
	FROM relations
	JOIN pg_attribute ON attrelid = relations.oid AND attnum > 0 AND NOT attisdropped
	LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	UNION ALL
	SELECT format('table %s constraint %s: %s', name, conname, pg_get_constraintdef(pg_constraint.oid))
	FROM relations
	JOIN pg_constraint ON conrelid = relations.oid AND contype <> 'n'
	UNION ALL
	SELECT format('table %s index %s: %s', name, indexrelid::regclass, pg_get_indexdef(indexrelid))
	FROM relations
	JOIN pg_index ON indrelid = relations.oid
	UNION ALL
	SELECT format('table %s trigger %s: %s', name, tgname, pg_get_triggerdef(pg_trigger.oid))
	FROM relations
	JOIN pg_trigger ON tgrelid = relations.oid AND NOT tgisinternal
	UNION ALL
	SELECT format('function %s(%s): %s, %s', proname, pg_get_function_arguments(pg_proc.oid), pg_get_function_result(pg_proc.oid),
	    CASE provolatile WHEN 'i' THEN 'immutable' WHEN 's' THEN 'stable' ELSE 'volatile' END)
	FROM pg_proc
	WHERE pronamespace = to_regnamespace('outbox')`

// bodies adds what two migrations of one server must have in common.
const bodies = `
	UNION ALL
	SELECT format('view %s body: %s', name, pg_get_viewdef(oid)) FROM relations WHERE relkind = 'v'
	UNION ALL
	SELECT format('function %s body: %s', proname, pg_get_functiondef(oid)) FROM pg_proc WHERE pronamespace = to_regnamespace('outbox')
	UNION ALL
	SELECT format('domain %s: %s, collation %s, %s', typname, format_type(typbasetype, typtypmod), typcollation,
	    (SELECT string_agg(conname || ' ' || pg_get_constraintdef(pg_constraint.oid), ', ' ORDER BY conname) FROM pg_constraint WHERE contypid = pg_type.oid))
	FROM pg_type
	WHERE typnamespace = to_regnamespace('outbox') AND typtype = 'd'
	UNION ALL
	SELECT format('%s %s column %s: %s, collation %s, identity %s, generated %s, storage %s', relkind, relname, attnum, format_type(atttypid, atttypmod), attcollation,
	    attidentity, attgenerated, attstorage)
	FROM pg_class
	JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
	WHERE relnamespace = to_regnamespace('outbox') AND NOT relispartition AND relkind IN ('r', 'p', 'c') AND relname NOT LIKE 'schema\_%'
	UNION ALL
	SELECT format('sequence %s: %s', seqrelid::regclass, to_jsonb(pg_sequence) - 'seqrelid')
	FROM pg_sequence
	JOIN pg_class ON pg_class.oid = seqrelid
	WHERE relnamespace = to_regnamespace('outbox') AND relname NOT LIKE 'schema\_%'`

func schema(t *testing.T, db *pgxpool.Pool, query string) string {
	t.Helper()
	rows, err := db.Query(t.Context(), `SELECT line FROM (`+query+`) AS everything (line) ORDER BY line COLLATE "C"`)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) == 0 {
		return ""
	}
	return strings.Join(lines, "\n") + "\n"
}

// A database may be in another encoding than UTF-8, which refuses what it lacks, also in
// the comments of a function.
func TestTheSchemaFitsEveryEncoding(t *testing.T) {
	t.Parallel()
	for _, encoding := range []string{"LATIN1", "EUC_JP", "SQL_ASCII"} {
		if state, err := migrations.Look(t.Context(), pgtest.NewEncoded(t, encoding)); err != nil || state.Condition != migrations.Current {
			t.Errorf("%s: %s (%v), want this build's", encoding, state, err)
		}
	}
	err := fs.WalkDir(migrations.FS, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := migrations.FS.ReadFile(name)
		if i := bytes.IndexFunc(text, func(r rune) bool { return r > 127 }); i >= 0 {
			t.Errorf("%s has a character that is not ASCII: %q", name, text[max(0, i-20):min(len(text), i+10)])
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}
