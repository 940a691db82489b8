-- name: TakeTurn :one
-- TakeTurn makes this process the one that does a @chore for the next @longest, unless another one is doing it or has
-- done it recently. It returns the turn, with which the result is stored, or NULL if this process does not have it; and
-- what the chore found when it was done last, and how long ago that was. A turn that ends more than an hour from now
-- was taken before the server's clock was set back.
WITH taken AS (
    INSERT INTO outbox.chores AS c (chore, done_at, free_at)
    VALUES (@chore, '-infinity', statement_timestamp() + @longest::interval)
    ON CONFLICT (chore) DO UPDATE
    SET free_at = excluded.free_at
    WHERE c.free_at IS NULL
       OR c.free_at <= statement_timestamp()
       OR c.free_at > statement_timestamp() + interval '1 hour'
    RETURNING c.free_at
)
SELECT (SELECT taken.free_at FROM taken)::timestamptz AS turn, before.found,
       coalesce(extract(epoch FROM statement_timestamp() - before.done_at), 0)::double precision AS age_seconds
FROM (SELECT @chore::text AS chore) AS asked
LEFT JOIN outbox.chores AS before ON before.chore = asked.chore AND before.found IS NOT NULL;

-- name: SampleDepth :many
-- SampleDepth counts the waiting jobs for each of the @max_kinds deepest kinds, and for the rest together under the
-- name other; and the same for queues, of which those that are worked, paused or limited come first. Dispatchers count
-- if they were seen within @fresh. It reads the whole table once. due and oldest_due_age_seconds of a paused queue are
-- 0. unhandled counts the due jobs, of queues that are not paused, for which no dispatcher of their queue has a
-- handler; of a queue, only while dispatchers work it, and such jobs do not make its oldest_due_age_seconds: they wait
-- for a deployment, and more workers of the same kind do not help them. Messages that a sink has not accepted are not
-- due: the relay counts them, and a sink that is paused or unavailable delays nobody else's jobs.
WITH depth AS MATERIALIZED (
    SELECT queue, kind,
           count(*) FILTER (WHERE status IN ('pending', 'retrying')) AS waiting,
           count(*) FILTER (WHERE status IN ('pending', 'retrying') AND run_at <= now() AND kind NOT LIKE 'relay:%') AS due,
           min(run_at) FILTER (WHERE status IN ('pending', 'retrying') AND run_at <= now() AND kind NOT LIKE 'relay:%') AS oldest_due,
           count(*) FILTER (WHERE status IN ('failed', 'dead'))      AS dead_letters,
           count(*) FILTER (WHERE status = 'blocked')                AS blocked,
           min(run_at) FILTER (WHERE status = 'blocked')             AS oldest_blocked
    FROM outbox.jobs
    GROUP BY queue, kind
), worker AS MATERIALIZED (
    SELECT workers.queues, workers.kinds
    FROM outbox.workers
    WHERE workers.seen_at > statement_timestamp() - @fresh::interval
), job AS (
    SELECT depth.*, due > 0 AND NOT EXISTS (
               SELECT FROM worker WHERE depth.queue = ANY (worker.queues) AND depth.kind = ANY (worker.kinds)) AS no_handler,
           EXISTS (SELECT FROM worker WHERE depth.queue = ANY (worker.queues)) AS worked
    FROM depth
), by_kind AS (
    SELECT kind, sum(waiting) AS waiting, sum(due) AS due, min(oldest_due) AS oldest_due, sum(dead_letters) AS dead_letters,
           sum(blocked) AS blocked, min(oldest_blocked) AS oldest_blocked,
           coalesce(sum(due) FILTER (WHERE no_handler AND NOT EXISTS (
               SELECT FROM outbox.queues WHERE queues.queue = job.queue AND queues.paused_at IS NOT NULL)), 0) AS unhandled,
           row_number() OVER (ORDER BY sum(waiting) DESC, kind) AS rank
    FROM job
    GROUP BY kind
), named AS (
    SELECT queue, true AS first FROM outbox.queues WHERE paused_at IS NOT NULL OR limited
    UNION ALL
    SELECT unnest(worker.queues), true FROM worker
    UNION ALL
    SELECT depth.queue, false FROM depth
), by_queue AS (
    SELECT name.queue, rule.paused_at IS NOT NULL AS paused, rule.max_running,
           rule.rate / nullif(extract(epoch FROM rule.rate_interval), 0) AS per_second,
           coalesce(open.waiting, 0) AS waiting,
           CASE WHEN rule.paused_at IS NULL THEN coalesce(open.due, 0) ELSE 0 END AS due,
           CASE WHEN rule.paused_at IS NULL THEN coalesce(open.unhandled, 0) ELSE 0 END AS unhandled,
           CASE WHEN rule.paused_at IS NULL THEN open.oldest_due END AS oldest_due,
           row_number() OVER (ORDER BY name.first DESC, open.due DESC NULLS LAST, name.queue) AS rank
    FROM (SELECT queue, bool_or(first) AS first FROM named GROUP BY queue) AS name
    LEFT JOIN outbox.queues AS rule ON rule.queue = name.queue
    LEFT JOIN (SELECT queue, sum(waiting) AS waiting, sum(due) AS due, sum(due) FILTER (WHERE no_handler AND worked) AS unhandled,
                      min(oldest_due) FILTER (WHERE NOT (no_handler AND worked)) AS oldest_due
               FROM job
               GROUP BY queue) AS open
        ON open.queue = name.queue
)
SELECT 'kind'::text AS what, (CASE WHEN rank <= @max_kinds::integer THEN kind ELSE 'other' END)::text AS name,
       sum(waiting)::bigint AS waiting, sum(due)::bigint AS due, sum(unhandled)::bigint AS unhandled, sum(dead_letters)::bigint AS dead_letters,
       coalesce(extract(epoch FROM now() - min(oldest_due)), 0)::double precision AS oldest_due_age_seconds,
       sum(blocked)::bigint AS blocked,
       coalesce(extract(epoch FROM now() - min(oldest_blocked)), 0)::double precision AS oldest_blocked_age_seconds,
       false::boolean AS paused, NULL::integer AS max_running, NULL::double precision AS per_second
FROM by_kind
GROUP BY 2
UNION ALL
SELECT 'queue', CASE WHEN rank <= @max_kinds::integer THEN queue ELSE 'other' END,
       sum(waiting)::bigint, sum(due)::bigint, sum(unhandled)::bigint, 0,
       coalesce(extract(epoch FROM now() - min(oldest_due)), 0)::double precision, 0, 0,
       bool_and(paused), CASE WHEN count(*) = 1 THEN min(max_running) END, CASE WHEN count(*) = 1 THEN min(per_second) END::double precision
FROM by_queue
GROUP BY 2
LIMIT 10000;

-- name: EndSample :many
-- EndSample ends a turn: it stores the rows of SampleDepth, together with what the server reports, and lets others
-- sample from @rest on. It returns what it has stored, or nothing if the turn was over before.
--
-- The server reports, as far as this role may see, what holds vacuum back: since when the oldest transaction runs (a
-- standby with feedback is always connected, and its snapshot moves on: like a slot, it has an age and no time), and
-- how many transactions ago the oldest transaction of a session, a prepared transaction or a replication slot began. It
-- also reports for how many days after today there are partitions without a gap; the latest migration; and for each
-- sink whether a process publishes to it.
WITH holder AS (
    SELECT activity.xact_start AS since, pg_catalog.age(activity.backend_xmin)::bigint AS age
    FROM pg_catalog.pg_stat_activity AS activity
    WHERE activity.backend_xmin IS NOT NULL
      AND activity.pid <> pg_catalog.pg_backend_pid()
      AND activity.usesysid IS NOT NULL -- an autovacuum worker has no user; not every role sees its backend_type
      AND (activity.datname = current_database() OR activity.datname IS NULL)
    UNION ALL
    SELECT prepared.prepared, pg_catalog.age(prepared.transaction)::bigint
    FROM pg_catalog.pg_prepared_xacts AS prepared
    UNION ALL
    SELECT NULL, greatest(pg_catalog.age(slot.xmin), pg_catalog.age(slot.catalog_xmin))::bigint
    FROM pg_catalog.pg_replication_slots AS slot
    WHERE slot.xmin IS NOT NULL
       OR slot.catalog_xmin IS NOT NULL
), server AS (
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(holder.since)), 0)::double precision AS horizon_age_seconds,
           coalesce(max(holder.age), 0) AS horizon_age_transactions,
           (SELECT min(days.ahead)
            FROM unnest('{history,events}'::text[]) AS parent
            CROSS JOIN LATERAL ( -- the first day, from today on, that has none
                SELECT greatest(coalesce(min(n), 401) - 1, 0) AS ahead
                FROM generate_series(0, 400) AS n
                WHERE NOT EXISTS (
                    SELECT FROM pg_catalog.pg_inherits AS link
                    JOIN pg_catalog.pg_class AS child ON child.oid = link.inhrelid
                    WHERE link.inhparent = ('outbox.' || parent)::regclass
                      AND child.relname = parent || to_char((now() AT TIME ZONE 'UTC') + n * interval '1 day', '_YYYYMMDD'))) AS days) AS days_ahead
    FROM holder
)
UPDATE outbox.chores
SET done_at = statement_timestamp(),
    free_at = statement_timestamp() + @rest::interval,
    found   = jsonb_build_object(
        'Depth', @depth::jsonb,
        'Server', jsonb_build_object('HorizonAgeSeconds', server.horizon_age_seconds,
            'HorizonAgeTransactions', server.horizon_age_transactions, 'DaysAhead', server.days_ahead),
        'Schema', (SELECT max(schema_version.version_id) FROM outbox.schema_version WHERE schema_version.is_applied),
        'Sinks', (SELECT jsonb_agg(jsonb_build_object('Name', sinks.sink, 'Owned', NOT {{lapsed "sinks.lease_expires_at"}}))
                  FROM outbox.sinks))
FROM server
WHERE chores.chore = @chore
  AND chores.free_at = @turn
RETURNING chores.found;
