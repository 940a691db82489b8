-- name: EnsureDays :one
-- EnsureDays creates the partitions of the history and the events up to @days_ahead days from now and returns how many
-- it created.
SELECT outbox.ensure_days(@days_ahead)::integer;

-- name: DropDay :exec
-- DropDay drops a day of the history or the events by its table's name, or empties it while its parent is in use; with
-- @lose it does so to a day that a sink has not read, too. It locks the day first, then its parent; lock_timeout
-- bounds the wait for each.
SELECT outbox.drop_day(CAST(@day::text AS regclass), @lose::boolean);

-- name: HasDay :one
-- HasDay reports whether there is a table of that name.
SELECT (to_regclass(@day::text) IS NOT NULL)::boolean;

-- name: ListHolders :many
-- ListHolders returns the transactions that use a day, given its table's name.
SELECT DISTINCT locks.virtualtransaction::text AS holder
FROM pg_catalog.pg_locks AS locks
WHERE locks.locktype = 'relation'
  AND locks.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
  AND locks.relation = to_regclass(@day::text)
  AND locks.granted
LIMIT 10000;

-- name: ListEventDays :many
-- ListEventDays returns the partitions of the events to which nothing is added any more and in which everything is
-- older than @keep, oldest first, with their positions and the sinks that have not read all of them. An empty day
-- begins and ends at 0.
WITH partition AS MATERIALIZED (
    SELECT child.oid AS id, format('%I.%I', namespace.nspname, child.relname)::text AS name,
           regexp_match(pg_get_expr(child.relpartbound, child.oid), 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS bounds
    FROM pg_catalog.pg_inherits AS link
    JOIN pg_catalog.pg_class AS child ON child.oid = link.inhrelid
    JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = child.relnamespace
    WHERE link.inhparent = 'outbox.events'::regclass
), past AS MATERIALIZED (
    SELECT id, name, (bounds[1])::timestamptz AS first_instant, (bounds[2])::timestamptz AS end_instant
    FROM partition
    WHERE (bounds[2])::timestamptz <= now() - @keep::interval
      AND (bounds[2])::timestamptz < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
)
SELECT past.name, past.first_instant::timestamptz AS first_instant, past.end_instant::timestamptz AS end_instant,
       coalesce(behind.first_position, 0)::bigint AS first_position, coalesce(behind.last_position, 0)::bigint AS last_position,
       behind.sinks::text[] AS sinks
FROM past
CROSS JOIN LATERAL outbox.sinks_behind(past.id::regclass) AS behind
ORDER BY past.first_instant
LIMIT 10000;

-- name: CountUnread :one
-- CountUnread returns how many events of a day, at positions after @after and up to @until, a sink has not read.
SELECT count(*)
FROM outbox.events
JOIN outbox.sinks ON sinks.sink = @sink
WHERE events.at >= @first_instant AND events.at < @end_instant
  AND events.position > @after AND events.position <= @until
  AND (events.position > sinks.top OR events.position <@ sinks.holes);
