package pgtest

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
)

// invariants hold after every test, whatever it did. Each query returns the
// jobs that break one; it is asked only where all its tables exist.
var invariants = []struct {
	sentence string
	tables   []string
	query    string
}{
	{
		"a job is running exactly while it has a lease",
		[]string{"outbox.jobs"},
		`SELECT id::text FROM outbox.jobs WHERE (status::text = 'running') <> (lease_expires_at IS NOT NULL) LIMIT 5`,
	},
	{
		"a job is open or in the history, not both",
		[]string{"outbox.jobs", "outbox.history"},
		`SELECT id::text FROM outbox.jobs JOIN outbox.history USING (id) LIMIT 5`,
	},
}

// asker is a connection or a pool.
type asker interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// brokenIn returns what is broken in a database, a sentence each.
func brokenIn(ctx context.Context, db asker) (broken []string, err error) {
	for _, i := range invariants {
		var exist bool
		err := db.QueryRow(ctx, `SELECT bool_and(to_regclass(t) IS NOT NULL) FROM unnest($1::text[]) t`, i.tables).Scan(&exist)
		if err != nil {
			return nil, err
		}
		if !exist {
			continue
		}
		rows, _ := db.Query(ctx, i.query)
		jobs, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", i.sentence, err)
		}
		if len(jobs) > 0 {
			broken = append(broken, fmt.Sprintf("%s: %s", i.sentence, strings.Join(jobs, ", ")))
		}
	}
	return broken, nil
}
