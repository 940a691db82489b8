-- name: EnsureDays :one
-- EnsureDays makes the partitions of the history and the events up to @days_ahead
-- days from now and returns how many it made.
SELECT outbox.ensure_days(@days_ahead)::integer;

-- name: DropDay :exec
-- DropDay drops a day of the history or the events by its table's name; @lose drops one
-- that a sink has not read. The day is locked first, its parent then; lock_timeout bounds
-- the wait for each.
SELECT outbox.drop_day(CAST(@day::text AS regclass), @lose::boolean);

-- name: ListEventDays :many
-- ListEventDays returns the partitions of the events of which everything is older than
-- @keep and nothing is added to any more, oldest first, with the positions in them and the
-- sinks that have not read all of them. An empty day begins at 0 and ends there.
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
-- CountUnread returns how many events of a day, at positions after @after and up to @until,
-- a sink has not read.
SELECT count(*)
FROM outbox.events
JOIN outbox.sinks ON sinks.sink = @sink
WHERE events.at >= @first_instant AND events.at < @end_instant
  AND events.position > @after AND events.position <= @until
  AND (events.position > sinks.top OR events.position <@ sinks.holes);
