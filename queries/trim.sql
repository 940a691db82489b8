-- name: ListHistoryPartitions :many
-- ListHistoryPartitions returns the partitions of the history with their days,
-- oldest first: whether all of it finished before now() - @longest, and how many
-- of the shorter retentions all of it is beyond (past), or some of it (touched).
-- The bounds are read from the catalog: names prove nothing.
WITH partition AS MATERIALIZED (
    SELECT format('%I.%I', namespace.nspname, child.relname)::text AS name,
           pg_relation_size(child.oid) / current_setting('block_size')::integer AS blocks,
           regexp_match(pg_get_expr(child.relpartbound, child.oid), 'FROM \(''([^'']+)''\) TO \(''([^'']+)''\)') AS bounds
    FROM pg_catalog.pg_inherits AS link
    JOIN pg_catalog.pg_class AS child ON child.oid = link.inhrelid
    JOIN pg_catalog.pg_namespace AS namespace ON namespace.oid = child.relnamespace
    WHERE link.inhparent = 'outbox.history'::regclass
), day AS MATERIALIZED (
    SELECT name, blocks, (bounds[1])::timestamptz AS first_instant, (bounds[2])::timestamptz AS end_instant
    FROM partition
    WHERE bounds IS NOT NULL
)
SELECT name, blocks::bigint AS blocks, first_instant::timestamptz AS first_instant, end_instant::timestamptz AS end_instant,
       -- Yesterday's partition would be made again.
       (end_instant <= now() - @longest::interval
           AND end_instant < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')::boolean AS beyond_all,
       (SELECT count(*) FROM unnest(@shorter::interval[]) AS shorter(keep) WHERE end_instant <= now() - keep) AS past,
       (SELECT count(*) FROM unnest(@shorter::interval[]) AS shorter(keep) WHERE first_instant < now() - keep) AS touched
FROM day
ORDER BY first_instant
LIMIT 10000;

-- name: TryTrimLock :one
-- TryTrimLock makes this transaction the only one that trims, unless another is.
SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.trim', 0));

-- name: TrimHistory :one
-- TrimHistory deletes, from the blocks [@first_block, @end_block) of the
-- partition of one day, the rows whose outcome is beyond its own retention.
-- Blocks rather than a LIMIT: however many rows stay or are dead already, a
-- partition is read once from end to end.
WITH rule AS MATERIALIZED (
    SELECT unnest(@statuses::text[])::outbox.job_status AS status, unnest(@keeps::interval[]) AS keep
), trimmed AS (
    DELETE FROM outbox.history
    USING rule
    WHERE history.finished_at >= @first_instant
      AND history.finished_at < @end_instant
      AND history.ctid >= format('(%s,0)', @first_block::bigint)::tid
      AND history.ctid < format('(%s,0)', @end_block::bigint)::tid
      AND history.status = rule.status
      AND history.finished_at < now() - rule.keep
    RETURNING 1
)
SELECT count(*) FROM trimmed;

-- name: TrimAttempts :one
-- TrimAttempts deletes up to @max_rows attempts that finished before
-- now() - @keep, beginning after the given one, and tells where it stopped. What
-- belongs to a job that is still open stays.
WITH old AS MATERIALIZED (
    SELECT attempts.finished_at, attempts.job_id, attempts.epoch,
           EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = attempts.job_id) AS is_open
    FROM outbox.attempts
    WHERE (attempts.finished_at, attempts.job_id, attempts.epoch) > (@after_finished_at::timestamptz, @after_job_id::uuid, @after_epoch::bigint)
      AND attempts.finished_at < now() - @keep::interval
    ORDER BY attempts.finished_at, attempts.job_id, attempts.epoch
    LIMIT @max_rows
), trimmed AS (
    DELETE FROM outbox.attempts
    USING old
    WHERE attempts.job_id = old.job_id
      AND attempts.epoch = old.epoch
      AND NOT old.is_open
    RETURNING 1
), reached AS (
    SELECT finished_at, job_id, epoch FROM old ORDER BY finished_at DESC, job_id DESC, epoch DESC LIMIT 1
)
SELECT (SELECT count(*) FROM trimmed) AS trimmed, (SELECT count(*) FROM old) AS looked_at,
       reached.finished_at::timestamptz AS finished_at, reached.job_id::uuid AS job_id, coalesce(reached.epoch, 0)::bigint AS epoch
FROM (SELECT 1) AS always
LEFT JOIN reached ON true;

-- name: TrimIdempotencyKeys :one
-- TrimIdempotencyKeys deletes up to @max_rows keys that were first used before
-- now() - @keep, beginning after the given one, and tells where it stopped. The
-- key of a job that is still open stays: a repeat must find its job.
WITH old AS MATERIALIZED (
    SELECT k.created_at, k.tenant_id, k.kind, k.key,
           EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = k.job_id) AS is_open
    FROM outbox.idempotency_keys AS k
    WHERE (k.created_at, k.tenant_id, k.kind, k.key) > (@after_created_at::timestamptz, @after_tenant_id::uuid, @after_kind::text, @after_key::text)
      AND k.created_at < now() - @keep::interval
    ORDER BY k.created_at, k.tenant_id, k.kind, k.key
    LIMIT @max_rows
), trimmed AS (
    DELETE FROM outbox.idempotency_keys
    USING old
    WHERE idempotency_keys.tenant_id = old.tenant_id
      AND idempotency_keys.kind = old.kind
      AND idempotency_keys.key = old.key
      AND NOT old.is_open
    RETURNING 1
), reached AS (
    SELECT created_at, tenant_id, kind, key FROM old ORDER BY created_at DESC, tenant_id DESC, kind DESC, key DESC LIMIT 1
)
SELECT (SELECT count(*) FROM trimmed) AS trimmed, (SELECT count(*) FROM old) AS looked_at,
       reached.created_at::timestamptz AS created_at, reached.tenant_id::uuid AS tenant_id,
       coalesce(reached.kind, '')::text AS kind, coalesce(reached.key, '')::text AS key
FROM (SELECT 1) AS always
LEFT JOIN reached ON true;

-- name: TrimInbox :one
-- TrimInbox deletes up to @max_rows messages that were received before
-- now() - @keep, beginning with @from_received_at, and tells where it stopped.
WITH old AS MATERIALIZED (
    SELECT inbox.received_at, inbox.consumer, inbox.message_id
    FROM outbox.inbox
    WHERE inbox.received_at >= @from_received_at
      AND inbox.received_at < now() - @keep::interval
    ORDER BY inbox.received_at
    LIMIT @max_rows
), trimmed AS (
    DELETE FROM outbox.inbox
    USING old
    WHERE inbox.consumer = old.consumer
      AND inbox.message_id = old.message_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM trimmed) AS trimmed, count(*) AS looked_at, max(old.received_at)::timestamptz AS received_at
FROM old;

-- name: TerminateWedgedListeners :many
-- TerminateWedgedListeners ends our own listeners that have stopped reading:
-- those that have been delivering notifications for longer than @wedged, and
-- those of @suspects that still wait for their client. Ours are those that said
-- LISTEN to one of our channels last. It returns every listener
-- that waits for its client now. One that waits inside of a transaction holds a
-- snapshot, which keeps vacuum from removing anything in the whole database.
SELECT activity.pid::integer AS pid,
       activity.application_name::text AS application_name,
       activity.backend_start::timestamptz AS backend_start,
       (CASE WHEN activity.xact_start < now() - @wedged::interval OR suspect.pid IS NOT NULL
             THEN pg_terminate_backend(activity.pid) ELSE false END)::boolean AS terminated
FROM pg_catalog.pg_stat_activity AS activity
LEFT JOIN (SELECT unnest(@suspects::integer[]) AS pid, unnest(@suspect_starts::timestamptz[]) AS backend_start) AS suspect
  ON suspect.pid = activity.pid AND suspect.backend_start = activity.backend_start
WHERE activity.usename = current_user
  AND activity.datname = current_database()
  AND activity.application_name LIKE '%-listener'
  AND activity.query ILIKE 'listen "outbox\_%'
  AND activity.wait_event = 'ClientWrite'
  AND activity.pid <> pg_backend_pid()
LIMIT 1000;
