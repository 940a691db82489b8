package pgtest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// invariants must hold after every test. Each has a sentence, and a query that returns whether there are jobs at all,
// and the jobs that break it. If there are no jobs, the other queries are skipped: planning a join with each day of the
// history takes longer than the rest of the check.
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

// asker runs a query: a connection or a pool.
type asker interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// brokenIn returns the invariants that are broken in a database, a sentence each.
func brokenIn(ctx context.Context, db asker) (broken []string, err error) {
	for _, i := range invariants {
		var some bool
		var jobs []string
		// Preparing the query first would take two more round trips.
		err := db.QueryRow(ctx, i.query, pgx.QueryExecModeExec).Scan(&some, &jobs)
		if pg, ok := errors.AsType[*pgconn.PgError](err); ok && pg.Code == "42P01" {
			continue // a table is missing: the database is not migrated
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
