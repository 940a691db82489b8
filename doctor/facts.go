package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Facts describe an installation without judging it.
type Facts struct {
	Server   string    // version of PostgreSQL
	Started  time.Time // when the server was
	Database string
	Size     int64 // of the database, in bytes
	Schema   int64 // number of the latest migration
	Tables   []TableFacts
}

// TableFacts describe a table, with its indexes and partitions.
type TableFacts struct {
	Name       string
	Bytes      int64
	Partitions int64 // 0 means that it has none
}

const factsSQL = `
SELECT current_setting('server_version')::text AS server, pg_postmaster_start_time() AS started,
       current_database()::text AS database, pg_database_size(current_database())::bigint AS size,
       (SELECT max(version_id) FROM outbox.schema_version WHERE is_applied)::bigint AS schema`

const tableFactsSQL = `
SELECT name, sum(pg_total_relation_size(coalesce(part.relid, ('outbox.' || name)::regclass)))::bigint AS bytes,
       count(*) FILTER (WHERE part.level > 0) AS partitions
FROM unnest('{jobs,history,attempts,events,audit}'::text[]) WITH ORDINALITY AS t(name, place)
LEFT JOIN LATERAL pg_partition_tree(('outbox.' || name)::regclass) AS part ON true -- none of a table without partitions
GROUP BY place, name
ORDER BY place`

// Describe returns the facts of the installation that pool connects to. A database with a thousand partitions takes
// some ten milliseconds.
func Describe(ctx context.Context, pool *pgxpool.Pool) (f Facts, err error) {
	if err := pool.QueryRow(ctx, factsSQL).Scan(&f.Server, &f.Started, &f.Database, &f.Size, &f.Schema); err != nil {
		return f, fmt.Errorf("describe the server: %w", err)
	}
	rows, err := pool.Query(ctx, tableFactsSQL)
	if err == nil {
		f.Tables, err = pgx.CollectRows(rows, pgx.RowToStructByPos[TableFacts])
	}
	if err != nil {
		return f, fmt.Errorf("describe the tables: %w", err)
	}
	return f, nil
}
