package pgtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgdev"
)

// cleanupTimeout bounds every operation on a database after its test.
const cleanupTimeout = time.Minute

var clones atomic.Int64

// clone is a database that was made from a template, and is dropped when the test is over.
type clone struct{ url string }

func newClone(t testing.TB, template string) clone {
	t.Helper()
	server := serverURL(t)
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	name, err := createClone(ctx, server, template)
	if err != nil {
		t.Fatalf("clone database %s: %v", template, err)
	}
	url, err := pgdev.WithDatabase(server, name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { finish(t, server, name, url) })
	return clone{url}
}

// check reports the invariants that the test has broken. It uses a connection of the pool or, if the pool has none left
// or is nil, a new one.
func (c clone) check(t testing.TB, pool *pgxpool.Pool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	violations, err := c.violations(ctx, pool)
	if err != nil {
		t.Errorf("check the database after the test: %v", err)
	}
	for _, v := range violations {
		t.Errorf("invariant broken: %s", v)
	}
}

func (c clone) violations(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	if pool != nil {
		bound, cancel := context.WithTimeout(ctx, closeTimeout)
		defer cancel()
		if violations, err := brokenIn(bound, pool); err == nil {
			return violations, nil
		}
	}
	conn, err := pgx.Connect(ctx, c.url)
	if err != nil {
		return nil, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return brokenIn(ctx, conn)
}

func createClone(ctx context.Context, server, template string) (name string, err error) {
	for {
		name = fmt.Sprintf("t_%d_%d", os.Getpid(), clones.Add(1))
		err = maintain(ctx, server, func(conn *pgx.Conn) error {
			// Copying files takes a fifth of the time that a copy through the WAL takes.
			_, err := conn.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE "+template+" STRATEGY file_copy")
			return err
		})
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42P04" {
			continue // an earlier process of the same number left it on a shared server
		}
		return name, err
	}
}

// finish drops a database after its test. It does not force that at first, so that it finds a connection that the test
// leaked: Postgres waits five seconds for one that is just closing.
func finish(t testing.TB, server, name, url string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()

	if t.Failed() && os.Getenv("PGTEST_KEEP") == "1" {
		t.Logf("kept for you: psql '%s'", url)
		if os.Getenv(serverVariable) == "" {
			t.Logf("(it ends with this test binary; to look at it afterwards run the tests under internal/pgtest/withserver, or set %s)", serverVariable)
		}
		return
	}
	if err := drop(ctx, server, name); err != nil {
		t.Errorf("drop the test's database: %v", err)
	}
}

func drop(ctx context.Context, server, name string) error {
	return maintain(ctx, server, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "DROP DATABASE "+name)
		if pg, ok := errors.AsType[*pgconn.PgError](err); !ok || pg.Code != "55006" {
			return err
		}
		leaked := sessions(ctx, conn, name)
		_, forced := conn.Exec(ctx, "DROP DATABASE "+name+" WITH (FORCE)")
		return errors.Join(fmt.Errorf("the test leaked connections:%s", leaked), forced)
	})
}

// sessions describes the sessions that are connected to a database.
func sessions(ctx context.Context, conn *pgx.Conn, database string) string {
	rows, _ := conn.Query(ctx, `
		SELECT format(E'\n    %s, %s for %s: %s', application_name, state, date_trunc('ms', now() - state_change), left(query, 200))
		FROM pg_stat_activity
		WHERE datname = $1`, database)
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return " " + err.Error()
	}
	return strings.Join(lines, "")
}
