package app

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations/migrate"
)

func TestADatabaseThatComesLateIsWaitedFor(t *testing.T) {
	t.Parallel()
	server, err := pgdev.Start(t.Context(), pgdev.Options{Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := server.Kill9(); err != nil {
		t.Fatal(err)
	}
	handled := make(chan struct{}, 2)
	r := start(t, greeter(func(context.Context, string) error { handled <- struct{}{}; return nil }), Config{DatabaseURL: server.URL()})
	r.awaitReadyz(503, "unready", map[string]string{
		"database": "down", "schema": "unknown", "dispatcher": "waiting", "reaper": "waiting", "scheduler": "waiting", "listener": "not listening",
	})

	if err := server.StartAgain(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.awaitReadyz(503, "unready", map[string]string{"schema": "behind", "dispatcher": "waiting", "reaper": "waiting", "scheduler": "waiting"})

	pool, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := migrate.Up(t.Context(), pool); err != nil {
		t.Fatal(err)
	}
	r.awaitReadyz(200, "ready", nil)
	enqueue(t, pool, "Ada")
	await(t, "the job", handled)

	if err := server.Restart(t.Context(), pgdev.Immediate); err != nil {
		t.Fatal(err)
	}
	pool.Reset()
	enqueue(t, pool, "Bob")
	await(t, "the job after the restart", handled)
	r.awaitReadyz(200, "ready", nil)
	r.end(nil)
}

func TestMigrateAtTheStart(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	r := start(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString(), Migrate: migrate.Up})
	r.awaitReadyz(200, "ready", nil)
	r.end(nil)
}

func TestAReadOnlyServerIsLeftAndFoundAgain(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	writable, err := pool.Acquire(t.Context()) // opened before: it stays writable
	if err != nil {
		t.Fatal(err)
	}
	defer writable.Release()
	alter := func(what string) {
		t.Helper()
		name := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
		if _, err := writable.Exec(t.Context(), "ALTER DATABASE "+name+" "+what); err != nil {
			t.Fatal(err)
		}
	}
	api := start(t, nil, Config{
		DatabaseURL: pool.Config().ConnString(), NoDispatch: true, NoReap: true, NoSchedule: true, NoListen: true,
		Components: []Component{{Name: "api", Run: func(ctx context.Context) error { <-ctx.Done(); return nil }}},
	})
	alone := map[string]string{"dispatcher": "off", "reaper": "off", "scheduler": "off", "listener": "off", "api": "working"}
	api.awaitReadyz(200, "ready", alone)
	alter("SET default_transaction_read_only = on")
	api.pool.Reset()
	alone["database"], alone["schema"] = "read-only", "unknown"
	api.awaitReadyz(200, "degraded", alone)
	families, err := api.config.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	shown := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "outbox_ready" {
				shown++
				if m.GetGauge().GetValue() != 0 {
					t.Errorf("outbox_ready of %s is %v beside a read-only server", m.GetLabel()[0].GetValue(), m.GetGauge().GetValue())
				}
			}
		}
	}
	if shown != 2 {
		t.Errorf("outbox_ready is shown of %d components, want database and schema", shown)
	}
	api.end(nil)
	r := start(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString()})
	r.awaitReadyz(503, "unready", map[string]string{
		"database": "read-only", "schema": "unknown", "dispatcher": "waiting", "reaper": "waiting", "scheduler": "waiting", "listener": "not listening",
	})
	alter("RESET default_transaction_read_only")
	r.awaitReadyz(200, "ready", nil)
	r.end(nil)
}

// A schema that another build has made of the same files is not worked with, and one that a newer
// build has migrated is.
func TestReadyzNamesTheFileThatDiffers(t *testing.T) {
	t.Parallel()
	for cause, want := range map[string]struct {
		status        int
		state, schema string
		detail        string
	}{
		`UPDATE outbox.schema_files SET checksum = sha256('') WHERE name = '00001_tables.sql'`: {503, "unready", "edited", "00001_tables.sql"},
		`DELETE FROM outbox.schema_files WHERE name = 'functions/cancel.sql'`:                  {503, "unready", "behind", "functions/cancel.sql"},
		`INSERT INTO outbox.schema_version (version_id, is_applied) VALUES (9999, true)`:       {200, "ready", "ahead", "09999"},
	} {
		pool := pgtest.New(t)
		if _, err := pool.Exec(t.Context(), cause); err != nil {
			t.Fatal(err)
		}
		_, schema := look(t.Context(), pool)
		if schema.State != want.schema || !strings.Contains(schema.Detail, want.detail) {
			t.Errorf("after %s the schema is %s: %s; want %s, and %s named", cause, schema.State, schema.Detail, want.schema, want.detail)
		}
		r := start(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString()})
		states := map[string]string{"schema": want.schema}
		if want.state == "unready" {
			states["dispatcher"], states["reaper"], states["scheduler"] = "waiting", "waiting", "waiting"
		}
		r.awaitReadyz(want.status, want.state, states)
		r.end(nil)
	}
}

// A release that no longer works beside this build has migrated the schema: the process ends with a
// sentence, also where it may migrate, and so does one that works already.
func TestABuildThatIsTooOldEnds(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	cut := make(chan struct{})
	working := startWith(t, greeter(nothing), Config{DatabaseURL: pool.Config().ConnString(), DrainDelay: time.Hour, Cut: cut}, func(p *process) { p.gate.between = 50 * time.Millisecond })
	working.awaitReadyz(200, "ready", nil)
	const raise = `INSERT INTO outbox.schema_files VALUES ('floor/0.9.0', sha256(''), 1000)`
	if _, err := pool.Exec(t.Context(), raise); err != nil {
		t.Fatal(err)
	}
	check := func(which string, err error) {
		if err == nil || !strings.Contains(err.Error(), "; run release 0.9.0 or a newer one") {
			t.Errorf("%s: %v, want a sentence that names the release", which, err)
		}
	}
	// It answers the proxies that have not seen that yet.
	working.awaitReadyz(503, "draining", map[string]string{"schema": "too-new"})
	close(cut)
	select {
	case err := <-working.ended:
		check("one that works", err)
	case <-time.After(time.Minute):
		t.Fatal("one that works goes on")
	}
	working.stopped = true
	for _, up := range []func(context.Context, *pgxpool.Pool) error{nil, migrate.Up} {
		check(fmt.Sprintf("with Migrate %t", up != nil), Run(t.Context(), greeter(nothing), Config{DatabaseURL: pool.Config().ConnString(), DrainDelay: time.Hour, Migrate: up}))
	}
}

// A process of the API alone goes on answering while its database is away. One that the database does not let in is
// configured wrongly, whether it has worked before or not.
func TestARefusedLoginIsNoOutage(t *testing.T) {
	t.Parallel()
	config := pgtest.New(t).Config()
	for name, want := range map[string]string{"nobody_of_this_name": statusUnready, "": statusDegraded} {
		to := config.Copy()
		to.ConnConfig.User = cmp.Or(name, to.ConnConfig.User)
		if name == "" {
			to.ConnConfig.Host, to.ConnConfig.Port, to.ConnConfig.Fallbacks = "127.0.0.1", 1, nil
		}
		pool, err := pgxpool.NewWithConfig(t.Context(), to)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		p := &process{pool: pool}
		p.gate = newGate(pool, Config{}, &p.readiness)
		if r := p.report(t.Context()); r.Status != statusUnready {
			t.Errorf("user %q, before the gate opens: %+v, want unready", name, r)
		}
		close(p.gate.open)
		if r := p.report(t.Context()); r.Status != want || r.Components["database"].State != databaseDown {
			t.Errorf("user %q: %+v, want %s and the database down", name, r, want)
		}
	}
}

// A server that is too old is named as what a process waits for, and not by a column that it lacks.
func TestAnUnsupportedServerIsWhatAProcessWaitsFor(t *testing.T) {
	t.Parallel()
	db := pgtest.NewEmpty(t)
	for _, sql := range []string{
		`CREATE SCHEMA other`,
		`CREATE FUNCTION other.version() RETURNS text LANGUAGE sql AS $$ SELECT 'PostgreSQL 14.13 on x86_64-pc-linux-gnu' $$`,
		`DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = other, pg_catalog', current_database()); END $$`,
	} {
		if _, err := db.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	db.Reset()
	_, schema := look(t.Context(), db)
	if want := "the server is PostgreSQL 14, and the oldest that is supported is 15"; schema.State != schemaUnknown || schema.Detail != want {
		t.Errorf("the schema is %q: %q, want unknown: %q", schema.State, schema.Detail, want)
	}
}
