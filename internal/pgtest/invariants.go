package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// invariants hold after every test, whatever it did: a sentence each, and a query for the jobs that break it, which
// also says whether there are jobs at all. Where there are none, nothing more is asked: to plan a join with each day
// of the history takes longer than the rest of the check.
var invariants = []struct{ sentence, query string }{
	{
		"a job is running exactly while it has a lease",
		`SELECT EXISTS (SELECT FROM outbox.jobs), ARRAY(
			SELECT id::text FROM outbox.jobs WHERE (status::text = 'running') <> (lease_expires_at IS NOT NULL) LIMIT 5)`,
	},
	{
		"a job is open or in the history, not both",
		`SELECT true, ARRAY(SELECT id::text FROM outbox.jobs JOIN outbox.history USING (id) LIMIT 5)`,
	},
}

// asker is a connection or a pool.
type asker interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// brokenIn returns what is broken in a database, a sentence each.
func brokenIn(ctx context.Context, db asker) (broken []string, err error) {
	for _, i := range invariants {
		var some bool
		var jobs []string
		// Prepared first, it would take two more round trips.
		err := db.QueryRow(ctx, i.query, pgx.QueryExecModeExec).Scan(&some, &jobs)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42P01" {
			continue // a table is missing: the database is not, or not yet, or no longer migrated
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", i.sentence, err)
		}
		if len(jobs) > 0 {
			broken = append(broken, fmt.Sprintf("%s: %s", i.sentence, strings.Join(jobs, ", ")))
		}
		if !some {
			break
		}
	}
	return broken, nil
}
