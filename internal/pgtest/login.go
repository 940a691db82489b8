package pgtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

// LoginURL returns databaseURL with a new login that is a member of the role, such as outbox_api, and of no other. The
// login is dropped when the test is over; the test must have closed its connections by then.
func LoginURL(t testing.TB, databaseURL, role string) string {
	t.Helper()
	target, err := url.Parse(databaseURL)
	if err != nil {
		t.Fatal(err)
	}
	server, err := pgdev.WithDatabase(databaseURL, "postgres")
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("login_%016x", rand.Uint64())
	if err := as(server, fmt.Sprintf(`CREATE ROLE %s LOGIN PASSWORD 'secret' IN ROLE %s`, name, role)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := as(server, `DROP ROLE `+name); err != nil {
			t.Error(err)
		}
	})
	target.User = url.UserPassword(name, "secret")
	return target.String()
}

// Login connects to the pool's database as a login of [LoginURL].
func Login(t testing.TB, pool *pgxpool.Pool, role string) *pgxpool.Pool {
	t.Helper()
	return open(t, LoginURL(t, pool.Config().ConnString(), role))
}

func as(server, sql string) error {
	ctx := context.Background() // the test's context has ended when it cleans up
	return maintain(ctx, server, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, sql)
		return err
	})
}
