package access_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/outbox"
)

// login connects as a new login that is a member of the role and nothing else, as
// docs/guides/tenants.md has a service do it. The tenant, if there is one, is that of its
// sessions.
func login(t *testing.T, db *pgxpool.Pool, role, tenant string) *pgxpool.Pool {
	t.Helper()
	setup := `GRANT ` + role + ` TO %[1]s;`
	if tenant != "" {
		setup += `ALTER ROLE %[1]s SET app.tenant_id = '` + tenant + `'`
	}
	return loginWith(t, db, setup)
}

// loginWith connects as a new login after a setup, in which %[1]s is the login and
// %[2]s the database.
func loginWith(t *testing.T, db *pgxpool.Pool, setup string) *pgxpool.Pool {
	t.Helper()
	target, err := url.Parse(db.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	database := db.Config().ConnConfig.Database
	name := fmt.Sprintf("login_%x_of_%s", rand.Uint32(), database)
	exec(t, db, `CREATE ROLE `+name+` LOGIN PASSWORD 'secret'; `+strings.NewReplacer("%[1]s", name, "%[2]s", database).Replace(setup))
	target.User = url.UserPassword(name, "secret")
	pool, err := pgxpool.New(context.Background(), target.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool.Close()
		if _, err := db.Exec(context.Background(), `DROP OWNED BY `+name+`; DROP ROLE `+name); err != nil {
			t.Error(err)
		}
	})
	return pool
}

func exec(t *testing.T, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// ask returns the one value of a query.
func ask[T any](t *testing.T, db outbox.DB, sql string, args ...any) T {
	t.Helper()
	var v T
	if err := db.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// wantForbidden checks that the role may not do it.
func wantForbidden(t *testing.T, db outbox.DB, sql string, args ...any) {
	t.Helper()
	if _, err := db.Exec(t.Context(), sql, args...); sqlstate(err) != "42501" {
		t.Errorf("%s: got %v, want SQLSTATE 42501", sql, err)
	}
}

func sqlstate(err error) string {
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok {
		return pgErr.Code
	}
	return ""
}
