package migrations_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

// Roles are the server's, not the database's. So these need a server that has none
// of ours yet, which is why they are one test.
func TestDatabasesOfOneServerShareTheRoles(t *testing.T) {
	t.Parallel()
	server, err := pgtest.StartServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	}()
	admin := connect(t, server.URL())
	defer admin.Close()
	golden, err := os.ReadFile(rolesGolden)
	if err != nil {
		t.Fatal(err)
	}
	wantGolden := func(what string, db *pgxpool.Pool) {
		t.Helper()
		if diff := cmp.Diff(string(golden), schema(t, db, privileges)); diff != "" {
			t.Errorf("privileges %s (-want +got):\n%s", what, diff)
		}
	}

	// Four databases make the roles at the same time.
	dbs := make([]*pgxpool.Pool, 4)
	var migrating sync.WaitGroup
	for i := range dbs {
		dbs[i] = connect(t, database(t, admin, server, fmt.Sprint("shared_", i)))
		migrating.Go(func() {
			if err := migrate.Up(t.Context(), dbs[i]); err != nil {
				t.Error(err)
			}
		})
	}
	migrating.Wait()
	for _, db := range dbs {
		wantGolden("of one of four", db)
	}
	// One of them gives them up, and the others keep theirs.
	if err := migrations.Down(t.Context(), dbs[0]); err != nil {
		t.Fatal(err)
	}
	wantGolden("beside one that was taken back", dbs[1])
	up(t, dbs[0])
	wantGolden("up again", dbs[0])
	for i, db := range dbs {
		db.Close()
		run(t, admin, fmt.Sprintf("DROP DATABASE shared_%d", i))
	}

	// The migrating role may not make roles, and there are none.
	const roles = `outbox_owner, outbox_producer, outbox_worker, outbox_api, outbox_reader`
	run(t, admin, `DROP ROLE `+roles+`; CREATE ROLE lesser LOGIN PASSWORD 'secret'`)
	target, err := url.Parse(database(t, admin, server, "managed"))
	if err != nil {
		t.Fatal(err)
	}
	run(t, admin, `GRANT CREATE ON DATABASE managed TO lesser`)
	target.User = url.UserPassword("lesser", "secret")
	lesser := connect(t, target.String())
	defer lesser.Close()
	up(t, lesser)
	run(t, lesser, `SELECT outbox.enqueue('greet')`)
	var active, secured bool
	if err := lesser.QueryRow(t.Context(), `SELECT row_security_active('outbox.jobs'), outbox.secure()`).Scan(&active, &secured); err != nil || active || secured {
		t.Errorf("without the roles row security is active = %t, secured = %t, %v; want neither", active, secured, err)
	}
	var open []string
	if err := lesser.QueryRow(t.Context(), `SELECT coalesce(array_agg(proname::text), '{}') FROM pg_proc
		WHERE pronamespace = 'outbox'::regnamespace AND prosecdef AND has_function_privilege('public', oid, 'EXECUTE')`).Scan(&open); err != nil || len(open) > 0 {
		t.Errorf("without the roles everybody may call %q, which run as the owner; %v", open, err)
	}
	run(t, admin, `CREATE ROLE outbox_owner; CREATE ROLE outbox_producer; CREATE ROLE outbox_worker; CREATE ROLE outbox_api; CREATE ROLE outbox_reader`)
	if err := lesser.QueryRow(t.Context(), `SELECT outbox.secure()`).Scan(&secured); err != nil || !secured {
		t.Errorf("with the roles it is secured = %t, %v; want true", secured, err)
	}
	wantGolden("once an administrator has made the roles", lesser)
	var jobs int
	if err := lesser.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs WHERE row_security_active('outbox.jobs')`).Scan(&jobs); err != nil || jobs != 1 {
		t.Errorf("under row security its owner sees %d jobs, %v; want the one that was there", jobs, err)
	}
}

func database(t *testing.T, admin *pgxpool.Pool, server *pgdev.Server, name string) string {
	t.Helper()
	run(t, admin, `CREATE DATABASE `+name)
	url, err := pgdev.WithDatabase(server.URL(), name)
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func connect(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.WithoutCancel(t.Context()), url)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func connectConfig(t *testing.T, config *pgxpool.Config) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.NewWithConfig(context.WithoutCancel(t.Context()), config)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func contains(s string, parts ...string) bool {
	for _, part := range parts {
		if !strings.Contains(s, part) {
			return false
		}
	}
	return true
}

func run(t *testing.T, db *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Nothing is made in a database that is not Postgres, or is one that is too old, and a process that looks says why.
func TestAnUnsupportedServerIsNotMigrated(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	run(t, db, `CREATE SCHEMA other`)
	run(t, db, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = other, pg_catalog', current_database()); END $$`)
	for version, want := range map[string]string{
		"PostgreSQL 11.2-YB-2.20.1.0-b0":                           "not PostgreSQL, but YugabyteDB",
		"PostgreSQL 14.13 (Debian 14.13-1) on x86_64-pc-linux-gnu": "the server is PostgreSQL 14, and the oldest that is supported is 15",
	} {
		run(t, db, `CREATE OR REPLACE FUNCTION other.version() RETURNS text LANGUAGE sql AS $$ SELECT '`+version+`' $$`)
		db.Reset()
		if err := migrate.Up(t.Context(), db); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Up returned %v, want %q", err, want)
		}
		if _, err := migrations.Look(t.Context(), db); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Look returned %v, want %q", err, want)
		}
	}
	var made bool
	if err := db.QueryRow(t.Context(), `SELECT to_regnamespace('outbox') IS NOT NULL`).Scan(&made); err != nil || made {
		t.Errorf("the schema was made: %t, %v", made, err)
	}
}
