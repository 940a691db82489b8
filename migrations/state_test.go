package migrations_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// changed gives Up something to do.
const changed = `UPDATE outbox.schema_files SET checksum = sha256('') WHERE name = 'functions/secure.sql'`

func TestLookNamesTheFile(t *testing.T) {
	t.Parallel()
	const files = `outbox.schema_files`
	for name, c := range map[string]struct {
		cause string
		want  migrations.State
		after migrations.Condition // Up; "" is an error
	}{
		"as made":                    {`SELECT 1`, migrations.State{Condition: migrations.Current}, migrations.Current},
		"no schema":                  {`DROP SCHEMA outbox CASCADE`, migrations.State{Condition: migrations.Behind}, migrations.Current},
		"an older function":          {`UPDATE ` + files + ` SET checksum = sha256('x'), revision = 0 WHERE name = 'functions/cancel.sql'`, migrations.State{Condition: migrations.Behind, File: "functions/cancel.sql"}, migrations.Current},
		"no such function":           {`DELETE FROM ` + files + ` WHERE name = 'functions/cancel.sql'`, migrations.State{Condition: migrations.Behind, File: "functions/cancel.sql"}, migrations.Current},
		"another function":           {`UPDATE ` + files + ` SET checksum = sha256('x') WHERE name = 'functions/cancel.sql'`, migrations.State{Condition: migrations.Edited, File: "functions/cancel.sql"}, migrations.Current},
		"another view":               {`UPDATE ` + files + ` SET checksum = sha256('x') WHERE name = 'views/open_jobs.sql'`, migrations.State{Condition: migrations.Edited, File: "views/open_jobs.sql"}, migrations.Current},
		"an unfinished migration":    {`DELETE FROM ` + files + ` WHERE name IN ('00002_indexes.sql', 'functions/cancel.sql')`, migrations.State{Condition: migrations.Behind, File: "00002_indexes.sql"}, migrations.Current},
		"another numbered file":      {`UPDATE ` + files + ` SET checksum = sha256('x') WHERE name IN ('00002_indexes.sql', 'functions/cancel.sql')`, migrations.State{Condition: migrations.Edited, File: "00002_indexes.sql"}, ""},
		"a newer function":           {`UPDATE ` + files + ` SET checksum = sha256('x'), revision = 1000 WHERE name = 'functions/cancel.sql'`, migrations.State{Condition: migrations.Ahead, File: "functions/cancel.sql"}, migrations.Ahead},
		"a function taken out since": {`DELETE FROM ` + files + ` WHERE name = 'functions/cancel.sql'; UPDATE ` + files + ` SET revision = revision + 1 WHERE name LIKE '%s/%'`, migrations.State{Condition: migrations.Ahead, File: "functions/all_tenants.sql"}, migrations.Ahead},
		"a newer numbered file":      {`INSERT INTO ` + files + ` VALUES ('09999_x.sql', sha256('x'), 0); INSERT INTO outbox.schema_version (version_id, is_applied) VALUES (9999, true)`, migrations.State{Condition: migrations.Ahead, File: "09999_x.sql"}, migrations.Ahead},
		"one that is not yet noted":  {`INSERT INTO outbox.schema_version (version_id, is_applied) VALUES (9999, true)`, migrations.State{Condition: migrations.Ahead, File: "09999"}, migrations.Ahead},
		"the next release's floor":   {`UPDATE ` + files + ` SET name = 'floor/0.1.0', revision = 1 WHERE name LIKE 'floor/%'`, migrations.State{Condition: migrations.Current}, migrations.Current},
		"a floor above this build":   {`INSERT INTO ` + files + ` VALUES ('floor/0.9.0', sha256(''), 1000); UPDATE ` + files + ` SET checksum = sha256('x') WHERE name = '00002_indexes.sql'`, migrations.State{Condition: migrations.TooNew, Floor: "0.9.0"}, ""},
		"a function that we dropped": {`INSERT INTO ` + files + ` VALUES ('functions/gone.sql', sha256('x'), 0)`, migrations.State{Condition: migrations.Behind, File: "functions/gone.sql"}, migrations.Current},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			run(t, db, c.cause)
			if got, err := migrations.Look(t.Context(), db); err != nil || got != c.want {
				t.Errorf("state %q %q, %v; want %q %q", got.Condition, got.File, err, c.want.Condition, c.want.File)
			}
			err := migrate.Up(t.Context(), db)
			if (err != nil) != (c.after == "") {
				t.Errorf("up: %v", err)
			}
			if got, err := migrations.Look(t.Context(), db); c.after != "" && (err != nil || got.Condition != c.after) {
				t.Errorf("after up: %s, %v; want %s", got, err, c.after)
			}
		})
	}
}

// The floor is the release before this one's, or this one's if it is the first.
func TestUpStoresTheFloor(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	up(t, db)
	var rows, revision int
	var name string
	err := db.QueryRow(t.Context(), `SELECT count(*), max(revision), max(name) FROM outbox.schema_files WHERE name LIKE 'floor/%'`).Scan(&rows, &revision, &name)
	if err != nil || rows != 1 || revision != 1 || name != "floor/0.1.0" {
		t.Errorf("the floor is %d of %s in %d rows, %v; want 1 of 0.1.0 in one", revision, name, rows, err)
	}
}

// A schema that is this build's is left as it is, and so is one that a newer build has made: an older one that starts
// must not make its own functions again.
func TestUpLeavesWhatItNeedNotChange(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const newer = `CREATE OR REPLACE FUNCTION outbox.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT gen_random_uuid()'`
	for _, c := range []struct {
		cause string
		keeps bool
	}{
		{newer, true},
		{newer + `; UPDATE outbox.schema_files SET checksum = sha256('') WHERE name = 'functions/uuid_v7.sql'`, false},
		{newer + `; INSERT INTO outbox.schema_version (version_id, is_applied) VALUES (9999, true)`, true},
		{newer + `; DELETE FROM outbox.schema_version WHERE version_id = 9999; UPDATE outbox.schema_files SET checksum = sha256(''), revision = revision + 1 WHERE name LIKE '%/%' AND name NOT LIKE 'floor/%'`, true},
	} {
		run(t, db, c.cause)
		up(t, db)
		var kept bool
		if err := db.QueryRow(t.Context(), `SELECT prosrc LIKE '%SELECT gen_random_uuid()' FROM pg_proc WHERE oid = 'outbox.uuid_v7'::regproc`).Scan(&kept); err != nil || kept != c.keeps {
			t.Errorf("after %s and up the function is the newer one: %t, %v; want %t", c.cause, kept, err, c.keeps)
		}
	}
}

// Triggers of a build before are called for each row, also where this build's statements have counted its event. Days
// of the history have triggers of their own.
func TestTriggersOfABuildBeforeAreReplaced(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const triggers = `SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname IN ('jobs_stream_created', 'jobs_stream_changed', 'history_stream_closed')`
	run(t, db, `SELECT outbox.ensure_days(14)`) // as many as up makes
	want := schema(t, db, triggers)
	run(t, db, `
		CREATE OR REPLACE TRIGGER jobs_stream_changed BEFORE UPDATE OF status ON outbox.jobs
		    FOR EACH ROW WHEN (NEW.streamed IS NOT NULL) EXECUTE FUNCTION outbox.stream_job();
		CREATE OR REPLACE TRIGGER history_stream_closed BEFORE INSERT ON outbox.history
		    FOR EACH ROW WHEN (NEW.streamed IS NOT NULL) EXECUTE FUNCTION outbox.stream_job();
		`+changed)
	if n := strings.Count(schema(t, db, triggers), "outbox.counts_events"); n != 0 {
		t.Fatalf("%d triggers are of this build before up, and the test is about nothing", n)
	}
	up(t, db)
	if diff := cmp.Diff(want, schema(t, db, triggers)); diff != "" {
		t.Errorf("triggers (-of this build +after up):\n%s", diff)
	}
}

// While somebody reads a table that has to be locked, up tries and gives up again and again, and
// nobody waits behind it for long.
func TestNobodyWaitsBehindAMigration(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reader, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := reader.Exec(t.Context(), `SELECT count(*) FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}

	// Nothing is to do that needs a strong lock.
	up(t, db)

	run(t, db, `ALTER TABLE outbox.keys NO FORCE ROW LEVEL SECURITY; `+changed)
	if _, err := reader.Exec(t.Context(), `SELECT count(*) FROM outbox.keys`); err != nil {
		t.Fatal(err)
	}
	if err := migrations.ApplyWithin(t.Context(), db, migrate.ApplyNumbered, 0); err == nil || !contains(err.Error(), "gave up", "pid ") {
		t.Errorf("beside a reader: %v, want that it gives up and says who has the lock", err)
	}
	done := make(chan error, 1)
	go func() { done <- migrate.Up(t.Context(), db) }()
	config := db.Config()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "500ms"
	readers := connectConfig(t, config)
	defer readers.Close()
	refused := 0
	for until := time.Now().Add(3 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		_, err := readers.Exec(t.Context(), `SELECT count(*) FROM outbox.keys`)
		switch {
		case pgsession.State(err) == pgsession.LockNotAvailable:
			refused++
		case err != nil:
			t.Fatal(err)
		}
	}
	if refused > 1 { // a machine that stands still may have one wait
		t.Errorf("%d other readers waited for half a second", refused)
	}
	select {
	case err := <-done:
		t.Errorf("up ended beside the reader: %v", err)
	default:
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	var forced bool
	if err := db.QueryRow(t.Context(), `SELECT relforcerowsecurity FROM pg_class WHERE oid = 'outbox.keys'::regclass`).Scan(&forced); err != nil || !forced {
		t.Errorf("row security of outbox.keys is forced: %t, %v; want true", forced, err)
	}
}

// A role's own timeouts are about ordinary statements; a session gets its own back. The looks that come before the
// timeouts are lifted are such statements, which a busy machine may need a while for: so the timeouts are long beside
// them, and what is made of the schema takes longer.
func TestUpUnderShortTimeouts(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	for _, sql := range []string{
		`CREATE FUNCTION linger() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1.1); END $$`,
		`CREATE EVENT TRIGGER linger ON ddl_command_end WHEN TAG IN ('CREATE SEQUENCE') EXECUTE FUNCTION linger()`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	config := db.Config()
	config.MaxConns = 1
	config.ConnConfig.RuntimeParams["statement_timeout"] = "1s"
	config.ConnConfig.RuntimeParams["lock_timeout"] = "7ms"
	config.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "900ms"
	hasty := connectConfig(t, config)
	defer hasty.Close()
	up(t, hasty)
	var settings string
	if err := hasty.QueryRow(t.Context(), `SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'), current_setting('idle_in_transaction_session_timeout'))`).Scan(&settings); err != nil || settings != "1s 7ms 900ms" {
		t.Errorf("after up the timeouts are %q, %v; want those from before", settings, err)
	}
}

// Rows of a published table can be deleted only if something names them. The days of events are dropped whole.
func TestRowsOfEveryTableHaveAnIdentity(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	const without = `
		SELECT coalesce(string_agg(relname, ', '), '')
		FROM pg_class
		WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r' AND relreplident <> 'f' AND relname NOT LIKE 'events\_2%'
		  AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND indisprimary)`
	var got string
	if err := db.QueryRow(t.Context(), without).Scan(&got); err != nil || got != "" {
		t.Errorf("made: %s have no identity, %v", got, err)
	}
	run(t, db, `
		DO $$
		DECLARE
		    name regclass;
		BEGIN
		    FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relreplident = 'f' LOOP
		        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY DEFAULT', name);
		    END LOOP;
		END
		$$; `+changed)
	up(t, db)
	if err := db.QueryRow(t.Context(), without).Scan(&got); err != nil || got != "" {
		t.Errorf("migrated: %s have no identity, %v", got, err)
	}
}

// A role that is not shown what sessions of others do still sees which of them have the locks.
func TestALesserRoleNamesWhoHoldsAMigrationUp(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	owner := asRole(t, db, `GRANT CREATE ON DATABASE %[2]I TO %[1]I`)
	up(t, owner)
	run(t, owner, `ALTER TABLE outbox.measures REPLICA IDENTITY DEFAULT; `+changed)
	reader, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := reader.Exec(t.Context(), `SELECT count(*) FROM outbox.measures`); err != nil {
		t.Fatal(err)
	}
	holder := fmt.Sprintf("pid %d,", reader.Conn().PgConn().PID())
	if err := migrations.ApplyWithin(t.Context(), owner, migrate.ApplyNumbered, 0); err == nil || !contains(err.Error(), "gave up", holder) {
		t.Errorf("beside a reader: %v, want that it gives up and names %s", err, holder)
	}
}

// An autovacuum has no user, no name and, for a lesser role, no type.
func TestAnAutovacuumIsNamedAsOne(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	for what, want := range map[string]string{
		`'', NULL::text, NULL::oid, 'autovacuum worker'`: "pid 7, autovacuum worker, for 400 s (if it is an autovacuum, a superuser ends it with SELECT pg_cancel_backend(7); wait for one to prevent wraparound, which begins again)",
		`NULL, NULL::text, NULL::oid, NULL`:              "pid 7, a process of the server, for 400 s (if it is an autovacuum, a superuser ends it with SELECT pg_cancel_backend(7); wait for one to prevent wraparound, which begins again)",
		`'', 'ada', 10::oid, 'client backend'`:           "pid 7, ada, for 400 s",
	} {
		var got string
		err := db.QueryRow(t.Context(), `SELECT `+migrations.Named+` FROM (VALUES (7, now() - interval '400 s', `+what+`)) AS a (pid, xact_start, application_name, usename, usesysid, backend_type)`).Scan(&got)
		if err != nil || got != want {
			t.Errorf("%s is named %q, %v; want %q", what, got, err, want)
		}
	}
}

// A lock that nobody gives up, as a pooler may keep one, is not waited for without an end or a word.
func TestAMigrationNamesWhoHasItsLock(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	other, err := db.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_lock(x'6f7574626f78'::bigint)`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	holder := fmt.Sprintf("(pid %d,", other.Conn().PgConn().PID())
	up(t, db) // there is nothing to do
	run(t, db, changed)
	if err := migrations.ApplyWithin(ctx, db, migrate.ApplyNumbered, 0); err == nil || !contains(err.Error(), "another session migrates", holder) {
		t.Errorf("while another has the lock: %v, want that it gives up and names %s", err, holder)
	}
	if _, err := other.Exec(t.Context(), `SELECT pg_advisory_unlock_all()`); err != nil {
		t.Fatal(err)
	}
}
