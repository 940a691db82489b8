package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// The queries are here rather than in queries/ because they concern the server's catalog, which sqlc does not know.

// server describes the server and its settings.
type server struct {
	Standby                                            bool
	ReadOnly, Fsync, FullPageWrites, SynchronousCommit string
	NotDurable                                         string // roles that may store jobs with synchronous_commit off
	Hidden                                             string // those with the server's, if ours has its own
	Autovacuum, Version                                string
	Clock                                              time.Time
	PID                                                uint32
	Notifications                                      float64 // used fraction of the queue
	Database, Collated, Collates                       string  // its name in SQL; its indexes' version, the server's
}

const serverSQL = `
WITH given AS (
    SELECT DISTINCT ON (setrole) setrole, setting -- that for this database counts
    FROM (SELECT setdatabase, setrole, unnest(setconfig) AS setting FROM pg_db_role_setting) AS given
    WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
      AND setting ILIKE 'synchronous_commit=%'
    ORDER BY setrole, setdatabase DESC
)
SELECT pg_is_in_recovery()::boolean                         AS standby,
       current_setting('transaction_read_only')::text       AS read_only,
       current_setting('fsync')::text                       AS fsync,
       current_setting('full_page_writes')::text            AS full_page_writes,
       (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')::text AS synchronous_commit, -- of others: ours have it on
       (SELECT coalesce(string_agg(coalesce('role ' || rolname, 'the database'), ', ' ORDER BY rolname), '')
        FROM given
        LEFT JOIN pg_roles ON pg_roles.oid = setrole
        WHERE setting ~* '=(off|false|no|0)$'
          AND (setrole = 0 OR rolcanlogin AND has_any_column_privilege(rolname, to_regclass('outbox.jobs'), 'INSERT'))) AS not_durable,
       (SELECT coalesce(string_agg('role ' || rolname, ', ' ORDER BY rolname), '')
        FROM pg_roles
        WHERE rolcanlogin AND NOT rolsuper AND has_any_column_privilege(rolname, to_regclass('outbox.jobs'), 'INSERT')
          AND oid NOT IN (SELECT setrole FROM given)
          AND 0 NOT IN (SELECT setrole FROM given)
          AND EXISTS (SELECT FROM given JOIN pg_roles AS ours ON ours.oid = setrole WHERE ours.rolname = session_user)) AS hidden,
       current_setting('autovacuum')::text                  AS autovacuum,
       current_setting('server_version')::text              AS version,
       clock_timestamp()::timestamptz                       AS clock,
       pg_backend_pid()::integer                            AS pid,
       pg_notification_queue_usage()::double precision      AS notifications,
       quote_ident(current_database())::text                AS database,
       coalesce(d.datcollversion, '')::text                 AS collated,
       coalesce(pg_database_collation_actual_version(d.oid), '')::text AS collates
FROM pg_database AS d
WHERE d.datname = current_database()`

// holder is a session, slot or standby for which vacuum keeps deleted rows.
type holder struct {
	What, Who string
	Since     *time.Time // nil for a replication slot or a standby, and where it is not shown
	Age       int64      // in transactions
}

const holdersSQL = `
SELECT holder.what::text AS what, holder.who::text AS who, holder.since::timestamptz AS since, holder.age::bigint AS age
FROM (
    SELECT 'session'::text AS what,
           format('pid %s, %s, application %s, %s', pid, usename, coalesce(nullif(application_name, ''), 'unnamed'), coalesce(state, backend_type, 'state not shown')) AS who,
           xact_start AS since, age(backend_xmin)::bigint AS age
    FROM pg_stat_activity
    WHERE backend_xmin IS NOT NULL
      AND pid <> pg_backend_pid()
      AND usesysid IS NOT NULL -- an autovacuum worker has no user; its backend_type is not shown to everybody
      AND (datname = current_database() OR datname IS NULL)
    UNION ALL
    SELECT 'prepared transaction', gid, prepared, age(transaction)::bigint
    FROM pg_prepared_xacts
    UNION ALL
    SELECT 'replication slot', slot_name::text, NULL, greatest(age(xmin), age(catalog_xmin))::bigint
    FROM pg_replication_slots
    WHERE xmin IS NOT NULL
       OR catalog_xmin IS NOT NULL
) AS holder
WHERE holder.since < clock_timestamp() - $1::interval
   OR holder.since IS NULL AND holder.age > 100000
ORDER BY holder.age DESC
LIMIT 10`

// unseen is a login that cannot see the activity of other roles' sessions: the columns of pg_stat_activity are NULL.
type unseen struct{ Login string }

const unseenSQL = `
SELECT quote_ident(current_user)::text AS login
WHERE NOT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')`

// wedged is a session that listens and does not read: a listener that reads is hardly ever found waiting for its
// client.
type wedged struct{ Who string }

const wedgedSQL = `
SELECT format('pid %s, %s, application %s', pid, usename, coalesce(nullif(application_name, ''), 'unnamed'))::text AS who
FROM pg_stat_activity
WHERE datname = current_database()
  AND pid <> pg_backend_pid()
  AND wait_event = 'ClientWrite'
  AND query ILIKE 'listen %'
ORDER BY backend_start
LIMIT 10`

// tables describes the state of the hot table and the partitions.
type tables struct {
	Live, Dead int64
	Vacuumed   *time.Time
	DaysAhead  int64
	Trimmed    *time.Time // when all data beyond its retention was last gone
	Untrimmed  float64    // hours since then, or since the schema was created or changed
	Days       int64      // of the history
	Sessions   int64      // the locks of which share a table of the server
	Locks      int64      // room in that table for each of them
}

const tablesSQL = `
SELECT coalesce(s.n_live_tup, 0)::bigint AS live, coalesce(s.n_dead_tup, 0)::bigint AS dead,
       greatest(s.last_autovacuum, s.last_vacuum)::timestamptz AS vacuumed,
       (SELECT min(ahead)
        FROM unnest('{history,events}'::text[]) AS parent
        CROSS JOIN LATERAL ( -- the first day, from today on, that has none
            SELECT greatest(coalesce(min(n), 401) - 1, 0) AS ahead
            FROM generate_series(0, 400) AS n
            WHERE NOT EXISTS (
                SELECT FROM pg_inherits AS i
                JOIN pg_class AS c ON c.oid = i.inhrelid
                WHERE i.inhparent = ('outbox.' || parent)::regclass
                  AND c.relname = parent || to_char((now() AT TIME ZONE 'UTC') + n * interval '1 day', '_YYYYMMDD'))) AS days)::bigint AS days_ahead,
       chores.done_at AS trimmed,
       (extract(epoch FROM now() - greatest(chores.done_at, (SELECT max(applied_at) FROM outbox.schema_files))) / 3600)::double precision AS untrimmed,
       (SELECT count(*) FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass)::bigint AS days,
       current_setting('max_connections')::bigint + current_setting('max_prepared_transactions')::bigint AS sessions,
       current_setting('max_locks_per_transaction')::bigint AS locks
FROM (SELECT 1) AS one
LEFT JOIN outbox.chores ON chores.chore = 'trim'
LEFT JOIN pg_stat_user_tables AS s ON s.relid = 'outbox.jobs'::regclass
LIMIT 1`

// work is what waits longer than it should, for machines and for people.
type work struct {
	DeadLetters, Lapsed int64
	OldestDue           *time.Time
	Now                 time.Time
	Paused              string
}

const workSQL = `
SELECT (SELECT count(*) FROM outbox.jobs WHERE jobs.status IN ('failed', 'dead'))::bigint AS dead_letters,
       (SELECT count(*) FROM outbox.jobs WHERE jobs.status = 'running' AND jobs.lease_expires_at < statement_timestamp() - interval '15 seconds'
          AND NOT EXISTS (SELECT FROM outbox.lease_extensions AS e WHERE e.job_id = jobs.id AND e.epoch = jobs.epoch AND e.expires_at > statement_timestamp()))::bigint AS lapsed,
       (SELECT min(jobs.run_at) FROM outbox.jobs
        WHERE jobs.status IN ('pending', 'retrying')
          AND jobs.kind NOT LIKE 'relay:%' -- the sink's finding says it
          AND jobs.queue NOT IN (SELECT queues.queue FROM outbox.queues WHERE queues.paused_at IS NOT NULL))::timestamptz AS oldest_due,
       statement_timestamp()::timestamptz AS now,
       (SELECT coalesce(string_agg(queues.queue, ', ' ORDER BY queues.queue), '') FROM outbox.queues WHERE queues.paused_at IS NOT NULL)::text AS paused`

// ask collects the rows of a query about the jobs of all tenants. A login that is a member of outbox_api alone sees no
// rows unless its transaction sets the tenant. A setting of the session would not do: behind a pooler the session may
// next belong to another client.
func ask[T any](ctx context.Context, conn *pgx.Conn, sql string, args ...any) (answers []T, err error) {
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT set_config('app.tenant_id', '*', true)`); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, sql, args...)
		answers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return err
	})
	return answers, err
}

func askOne[T any](ctx context.Context, conn *pgx.Conn, sql string) (answer T, err error) {
	answers, err := ask[T](ctx, conn, sql)
	if err == nil && len(answers) != 1 {
		err = fmt.Errorf("got %d rows, want one", len(answers))
	}
	if err != nil {
		return answer, err
	}
	return answers[0], nil
}
