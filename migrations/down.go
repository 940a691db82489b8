package migrations

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Down removes the schema. It refuses while the schema holds a job, an event, a schedule, a token, an act in the audit
// trail, a consumer's messages or position, a saved view, a paused or limited queue, or a sink, and while another
// object, such as your own view, depends on it. It leaves the roles, which other databases of the server may use.
func Down(ctx context.Context, pool *pgxpool.Pool) error {
	if err := patiently(ctx, pool, patience, func() error { return locked(ctx, pool, patience, down) }); err != nil {
		return fmt.Errorf("migrate down: %w", err)
	}
	return nil
}

// missed lists the tables whose rows make Down refuse.
var missed = []string{
	"outbox.jobs", "outbox.history", "outbox.events", "outbox.schedules", "outbox.tokens",
	"outbox.audit", "outbox.inbox", "outbox.inbox_positions", "outbox.saved_views", "outbox.queues", "outbox.sinks",
}

func down(ctx context.Context, tx pgx.Tx) error {
	var exists bool
	if err := tx.QueryRow(ctx, `SELECT to_regclass('outbox.schema_files') IS NOT NULL`).Scan(&exists); err != nil ||
		!exists {
		return err
	}
	// Callers that want to store something wait until the schema is gone.
	if _, err := tx.Exec(ctx, `LOCK TABLE `+strings.Join(missed, ", ")+` IN ACCESS EXCLUSIVE MODE`); err != nil {
		return err
	}
	// An owner whom no policy names, as after REASSIGN OWNED, would find every table empty.
	for _, table := range missed {
		if _, err := tx.Exec(ctx, `ALTER TABLE `+table+` NO FORCE ROW LEVEL SECURITY`); err != nil {
			return err
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT 'open jobs' WHERE EXISTS (SELECT FROM outbox.jobs)
		UNION ALL SELECT 'closed jobs' WHERE EXISTS (SELECT FROM outbox.history)
		UNION ALL SELECT 'events' WHERE EXISTS (SELECT FROM outbox.events)
		UNION ALL SELECT 'schedules' WHERE EXISTS (SELECT FROM outbox.schedules)
		UNION ALL SELECT 'tokens' WHERE EXISTS (SELECT FROM outbox.tokens)
		UNION ALL SELECT 'acts in the audit' WHERE EXISTS (SELECT FROM outbox.audit)
		UNION ALL SELECT 'messages that consumers have handled' WHERE EXISTS (SELECT FROM outbox.inbox)
		UNION ALL SELECT 'positions of consumers' WHERE EXISTS (SELECT FROM outbox.inbox_positions)
		UNION ALL SELECT 'saved views' WHERE EXISTS (SELECT FROM outbox.saved_views)
		UNION ALL SELECT 'paused or limited queues' WHERE EXISTS (SELECT FROM outbox.queues WHERE paused_at IS NOT NULL OR limited)
		UNION ALL SELECT 'positions of sinks' WHERE EXISTS (SELECT FROM outbox.sinks)`)
	if err != nil {
		return err
	}
	full, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(full) > 0 {
		return fmt.Errorf("there are %s, so nothing was removed; to remove them, too: DROP SCHEMA outbox CASCADE",
			strings.Join(full, ", "))
	}
	_, err = tx.Exec(ctx, remove)
	return err
}

// remove drops the objects of the schema kind by kind, without CASCADE, so that it fails if another object depends on
// one. Functions with a table's row in their signature go before the tables; those that triggers and policies call go
// after them.
const remove = `
DO $$
DECLARE
    ours     CONSTANT oid := 'outbox'::regnamespace;
    kind     text;
    list     text;
BEGIN
    FOR kind, list IN
        SELECT word, string_agg(name, ', ')
        FROM (
            SELECT CASE relkind WHEN 'v' THEN 1 ELSE 2 END, CASE relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END, oid::regclass::text
            FROM pg_class
            WHERE relnamespace = ours AND relkind IN ('v', 'r', 'p') AND NOT relispartition
            UNION ALL
            SELECT CASE WHEN EXISTS (
                       SELECT
                       FROM unnest(coalesce(proallargtypes, proargtypes::oid[])) AS of_type
                       JOIN pg_type ON pg_type.oid = of_type
                       JOIN pg_class ON pg_class.oid = typrelid AND relkind IN ('r', 'p')) THEN 0 ELSE 3 END,
                   'FUNCTION', oid::regprocedure::text
            FROM pg_proc
            WHERE pronamespace = ours
            UNION ALL
            SELECT 3, 'SEQUENCE', 'outbox.commit_order'
            UNION ALL
            SELECT CASE typtype WHEN 'd' THEN 4 ELSE 5 END, CASE typtype WHEN 'd' THEN 'DOMAIN' ELSE 'TYPE' END, pg_type.oid::regtype::text
            FROM pg_type
            LEFT JOIN pg_class ON pg_class.oid = typrelid
            WHERE typnamespace = ours AND (typtype IN ('d', 'e') OR relkind = 'c')
        ) AS thing (turn, word, name)
        GROUP BY turn, word
        ORDER BY turn
    LOOP
        EXECUTE format('DROP %s %s', kind, list);
    END LOOP;
    DROP SCHEMA outbox;
END
$$`
