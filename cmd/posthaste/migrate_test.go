package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
	"github.com/posthaste-dev/posthaste/outbox"
)

func TestMigrateUpStatusDown(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.NewEmpty(t).Config().ConnString()}
	applied := func() (n, all int) {
		var rows []struct{ Applied bool }
		r := posthaste(t, e, "", "migrate", "status", "-o", "json")
		if err := json.Unmarshal([]byte(r.out), &rows); err != nil {
			t.Fatal(err)
		}
		if missing := strings.Contains(r.errOut, "the schema outbox is missing; run: posthaste migrate up"); missing != (r.code == exitFailed) {
			t.Errorf("exit status %d, said %q, want 1 exactly if the schema is missing", r.code, r.errOut)
		}
		for _, r := range rows {
			if r.Applied {
				n++
			}
		}
		return n, len(rows)
	}
	if n, all := applied(); n != 0 || all == 0 {
		t.Errorf("got %d of %d migrations applied at first, want none of some", n, all)
	}
	if out := ok(t, e, "migrate", "up"); !strings.Contains(out, "applied 00001_tables.sql\n") {
		t.Errorf("migrate up says %q, want what it has applied", out)
	}
	if out := ok(t, e, "migrate", "up"); !strings.HasPrefix(out, "nothing to apply\n") {
		t.Errorf("migrate up says %q where there was nothing to do", out)
	}
	if n, all := applied(); n != all {
		t.Errorf("got %d of %d migrations applied, want all", n, all)
	}
	ok(t, e, "migrate", "down")
	if n, all := applied(); n != 0 {
		t.Errorf("got %d of %d migrations applied after down, want none", n, all)
	}
	ok(t, e, "migrate", "up")
}

// A pod may start while the address leads to a standby, or to nothing.
func TestMigrateUpWaitsForADatabaseThatAcceptsWrites(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	conn, err := pool.Acquire(t.Context()) // opened before: it stays writable
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	name := pgx.Identifier{pool.Config().ConnConfig.Database}.Sanitize()
	if _, err := conn.Exec(t.Context(), `ALTER DATABASE `+name+` SET default_transaction_read_only = on`); err != nil {
		t.Fatal(err)
	}
	e := env{"DATABASE_URL": pool.Config().ConnString()}
	if got := posthaste(t, e, "", "migrate", "up", "--wait", "1ms"); got.code != 1 {
		t.Errorf("it ends with %d and says %q, want 1", got.code, got.errOut)
	}
	refused := pool.Config().ConnConfig
	nobody := env{"DATABASE_URL": fmt.Sprintf("host=%s port=%d dbname=%s user=nobody_of_this_name", refused.Host, refused.Port, refused.Database)}
	if got := posthaste(t, nobody, "", "migrate", "up", "--wait", "1h"); got.code != 1 || strings.Contains(got.errOut, "waiting") {
		t.Errorf("a login that is refused ends it with %d and says %q, want 1 at once", got.code, got.errOut)
	}
	ended := make(chan ran, 1)
	waiting := &firstWrite{written: make(chan struct{})}
	go func() {
		var out bytes.Buffer
		code := run(t.Context(), []string{"posthaste", "migrate", "up", "--wait", "1m"}, func(name string) string { return e[name] }, strings.NewReader(""), &out, waiting)
		ended <- ran{code: code, out: out.String()}
	}()
	select {
	case <-waiting.written:
	case got := <-ended:
		t.Fatalf("it ends with %d beside a read-only server", got.code)
	}
	if _, err := conn.Exec(t.Context(), `ALTER DATABASE `+name+` RESET default_transaction_read_only`); err != nil {
		t.Fatal(err)
	}
	if got := <-ended; got.code != 0 || !strings.Contains(got.out, "the schema is this build's") {
		t.Errorf("it ends with %d and says %q, want the state of the schema", got.code, got.out)
	}
}

// firstWrite tells when something was written.
type firstWrite struct {
	once    sync.Once
	written chan struct{}
}

func (w *firstWrite) Write(b []byte) (int, error) {
	w.once.Do(func() { close(w.written) })
	return len(b), nil
}

func TestMigrateSQLIsTheSameAsUp(t *testing.T) {
	t.Parallel()
	pool := pgtest.NewEmpty(t)
	script := ok(t, nil, "migrate", "sql")
	if err := applyScript(t, pool, script); err != nil {
		t.Fatal(err)
	}
	if state, err := migrations.Look(t.Context(), pool); err != nil || state.Condition != migrations.Current {
		t.Errorf("%s (%v), want this build's", state, err)
	}
	ok(t, env{"DATABASE_URL": pool.Config().ConnString()}, "migrate", "up")
	if _, err := outbox.Enqueue(t.Context(), pool, outbox.Raw{KindName: "greet", Payload: []byte(`{}`)}, outbox.Options{}); err != nil {
		t.Error(err)
	}
	// Functions and grants may be applied again beside what there is.
	rest := ok(t, nil, "migrate", "sql", "--after", fmt.Sprint(migrations.Latest()))
	if strings.Contains(rest, "CREATE TABLE outbox.jobs") {
		t.Errorf("got a migration after the last:\n%s", rest)
	}
	if err := applyScript(t, pool, rest); err != nil {
		t.Error(err)
	}
	for name, pool := range map[string]*pgxpool.Pool{"without a schema": pgtest.NewEmpty(t), "of an older release": pgtest.New(t)} {
		if name == "of an older release" {
			if _, err := pool.Exec(t.Context(), `DELETE FROM outbox.schema_version WHERE version_id = $1`, migrations.Latest()-1); err != nil {
				t.Fatal(err)
			}
		}
		if err := applyScript(t, pool, rest); err == nil || !strings.Contains(err.Error(), "lacks it or one before it") {
			t.Errorf("on a database %s: %v, want a refusal", name, err)
		}
	}
	// What up would not do, the script does not either.
	other, err := pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	for _, c := range []struct{ before, want string }{
		{`SELECT pg_advisory_lock(x'6f7574626f78'::bigint)`, "another session migrates"},
		{`SELECT pg_advisory_unlock_all(); UPDATE outbox.schema_files SET revision = revision + 1 WHERE name LIKE 'functions/%'`, "a newer release"},
		{`UPDATE outbox.schema_files SET revision = revision - 1 WHERE name LIKE 'functions/%'; INSERT INTO outbox.schema_version (version_id, is_applied) VALUES (9999, true)`, "a newer release"},
	} {
		if _, err := other.Exec(t.Context(), c.before); err != nil {
			t.Fatal(err)
		}
		if err := applyScript(t, pool, rest); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("after %s: %v, want %q", c.before, err, c.want)
		}
	}
}

// applyScript runs a script of migrate sql, again where it gave up waiting for a lock, as it says itself.
func applyScript(t *testing.T, pool *pgxpool.Pool, script string) (err error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		_, err = pool.Exec(t.Context(), script) // without arguments: many statements at once
		if failed, ok := errors.AsType[*pgconn.PgError](err); !ok || failed.Code != "55P03" {
			return err
		}
	}
	return err
}

func TestMigrateStatusNamesAnEditedFile(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `UPDATE outbox.schema_files SET checksum = sha256('') WHERE name = '00001_tables.sql'`); err != nil {
		t.Fatal(err)
	}
	got := posthaste(t, env{"DATABASE_URL": pool.Config().ConnString()}, "", "migrate", "status")
	if got.code != 1 || !strings.Contains(got.errOut, "another text of 00001_tables.sql") {
		t.Errorf("status ends with %d and says %q, want 1 and the file's name", got.code, got.errOut)
	}
}

// A build that is too old says which release to run, changes nothing, and exits with 1.
func TestMigrateRefusesWhereTheBuildIsTooOld(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	if _, err := pool.Exec(t.Context(), `INSERT INTO outbox.schema_files VALUES ('floor/0.9.0', sha256(''), 1000)`); err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"status", "up"} {
		got := posthaste(t, env{"DATABASE_URL": pool.Config().ConnString()}, "", "migrate", command)
		if got.code != 1 || !strings.Contains(got.errOut, "run release 0.9.0 or a newer one") {
			t.Errorf("%s ends with %d and says %q, want 1 and the release", command, got.code, got.errOut)
		}
	}
}

// A role that may not make roles migrates without row security. The command says so at once, migrate status
// and doctor say it later, with what to do about it.
func TestMigrateWithoutTheRightToMakeRolesSaysSo(t *testing.T) {
	t.Parallel()
	server, err := pgtest.StartServer(t.Context()) // roles are the server's: this one has none of ours
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Stop() }()
	admin, err := pgxpool.New(t.Context(), server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	for _, sql := range []string{`CREATE ROLE plain LOGIN PASSWORD 'secret'`, `CREATE DATABASE shop OWNER plain`} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	shop, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	shop.User, shop.Path = url.UserPassword("plain", "secret"), "/shop"
	e := env{"DATABASE_URL": shop.String()}
	const note = "row-level security is off"
	var remedy string
	for _, command := range [][]string{{"migrate", "up"}, {"migrate", "status"}} {
		r := posthaste(t, e, "", command...)
		if r.code != exitOK || !strings.Contains(r.errOut, note) {
			t.Errorf("%v: exit status %d, said %q, want that %s", command, r.code, r.errOut, note)
		}
		_, remedy, _ = strings.Cut(r.errOut, "administrator run: ")
	}
	if r := posthaste(t, e, "", "doctor"); !strings.Contains(r.out, note) {
		t.Errorf("doctor does not say that %s:\n%s", note, r.out)
	}

	roles, secure, _ := strings.Cut(remedy, " Then the owner: ")
	if _, err := admin.Exec(t.Context(), roles); err != nil {
		t.Fatalf("what it says to do: %q: %v", roles, err)
	}
	owner, err := pgx.Connect(t.Context(), e["DATABASE_URL"])
	if err != nil {
		t.Fatal(err)
	}
	defer owner.Close(context.WithoutCancel(t.Context()))
	if _, err := owner.Exec(t.Context(), secure); err != nil {
		t.Fatalf("what it says to do: %q: %v", secure, err)
	}
	if r := posthaste(t, e, "", "migrate", "status"); r.code != exitOK || strings.Contains(r.errOut, note) {
		t.Errorf("after doing what it said: exit status %d, %q", r.code, r.errOut)
	}
}
