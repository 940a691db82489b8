-- name: ListHistoryPartitions :many
-- ListHistoryPartitions returns the partitions of the history with their days, oldest first: whether all of a partition
-- finished before now() - @longest, and for how many of the shorter retentions all of it is beyond them (past), or some
-- of it (touched). A day is over when nothing is added to it any more. The bounds are read from the catalog, because
-- names prove nothing.
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
       -- Yesterday's partition would be created again.
       (end_instant < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')::boolean AS is_over,
       (end_instant <= now() - @longest::interval
           AND end_instant < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC')::boolean AS beyond_all,
       (SELECT count(*) FROM unnest(@shorter::interval[]) AS shorter(keep) WHERE end_instant <= now() - keep) AS past,
       (SELECT count(*) FROM unnest(@shorter::interval[]) AS shorter(keep) WHERE first_instant < now() - keep) AS touched
FROM day
ORDER BY first_instant
LIMIT 10000;

-- name: TryTrimLock :one
-- TryTrimLock makes this transaction the only one that trims, unless another one is.
SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.trim', 0));

-- name: NoteChore :exec
-- NoteChore records that a chore was completed just now.
INSERT INTO outbox.chores (chore, done_at)
VALUES (@chore, statement_timestamp())
ON CONFLICT (chore) DO UPDATE
SET done_at = excluded.done_at;

-- name: TrimAttempts :one
-- TrimAttempts deletes up to @max_rows attempts that finished before now() - @keep, beginning after the given one, and
-- returns where it stopped. Attempts of a job that is still open, or still in the history, stay.
WITH old AS MATERIALIZED (
    SELECT attempts.finished_at, attempts.job_id, attempts.epoch,
           (EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = attempts.job_id)
            OR EXISTS (SELECT FROM outbox.history WHERE history.id = attempts.job_id)) AS is_kept
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
      AND NOT old.is_kept
    RETURNING 1
), reached AS (
    SELECT finished_at, job_id, epoch FROM old ORDER BY finished_at DESC, job_id DESC, epoch DESC LIMIT 1
)
SELECT (SELECT count(*) FROM trimmed) AS trimmed, (SELECT count(*) FROM old) AS looked_at,
       reached.finished_at::timestamptz AS finished_at, reached.job_id::uuid AS job_id, coalesce(reached.epoch, 0)::bigint AS epoch
FROM (SELECT 1) AS always
LEFT JOIN reached ON true;

-- name: TrimInbox :one
-- TrimInbox deletes up to @max_rows messages that were received before now() - @keep, beginning with @from_received_at,
-- and returns where it stopped.
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

-- name: TrimReports :one
-- TrimReports deletes the reports of up to @max_rows jobs (progress, checkpoints, logs and steps) that began to report
-- before now() - @keep, beginning after the given one, and returns where it stopped. Reports of a job that is still
-- open, or still in the history, stay.
WITH old AS MATERIALIZED (
    SELECT progress.created_at, progress.job_id,
           (EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = progress.job_id)
            OR EXISTS (SELECT FROM outbox.history WHERE history.id = progress.job_id)) AS is_kept
    FROM outbox.progress
    WHERE (progress.created_at, progress.job_id) > (@after_created_at::timestamptz, @after_job_id::uuid)
      AND progress.created_at < now() - @keep::interval
    ORDER BY progress.created_at, progress.job_id
    LIMIT @max_rows
), logs AS (
    DELETE FROM outbox.job_logs
    USING old
    WHERE job_logs.job_id = old.job_id
      AND NOT old.is_kept
), steps AS (
    DELETE FROM outbox.job_steps
    USING old
    WHERE job_steps.job_id = old.job_id
      AND NOT old.is_kept
), trimmed AS (
    DELETE FROM outbox.progress
    USING old
    WHERE progress.job_id = old.job_id
      AND NOT old.is_kept
    RETURNING 1
), reached AS (
    SELECT created_at, job_id FROM old ORDER BY created_at DESC, job_id DESC LIMIT 1
)
SELECT (SELECT count(*) FROM trimmed) AS trimmed, (SELECT count(*) FROM old) AS looked_at,
       reached.created_at::timestamptz AS created_at, reached.job_id::uuid AS job_id
FROM (SELECT 1) AS always
LEFT JOIN reached ON true;

-- name: TrimLeaseExtensions :execrows
-- TrimLeaseExtensions deletes extensions that ran out more than @keep ago.
DELETE FROM outbox.lease_extensions
WHERE expires_at < now() - @keep::interval;

-- name: TerminateStuckSessions :many
-- TerminateStuckSessions terminates our own listeners that have stopped reading: those that have been delivering
-- notifications for longer than @wedged, and those of @suspects that still wait for their client. Ours are those whose
-- last statement was LISTEN on one of our channels. It returns every listener that waits for its client now. A listener
-- that waits inside a transaction holds a snapshot, which keeps vacuum from removing anything in the whole database.
--
-- It also terminates, and returns with the job, sessions that have been idle in a transaction for longer than @idle and
-- have locked the row of a running job whose lease, and its extension, lapsed as long ago: the worker is gone or
-- ignores that the lease is lost, and until the transaction ends nobody else can have the job. The transaction id in
-- the row identifies the session that holds the lock. Only sessions that this role may see and terminate are
-- considered.
WITH idle AS MATERIALIZED (
    SELECT activity.pid, activity.application_name, activity.backend_start, locks.transactionid
    FROM pg_catalog.pg_stat_activity AS activity
    JOIN pg_catalog.pg_locks AS locks ON locks.pid = activity.pid
    WHERE activity.state LIKE 'idle in transaction%'
      AND activity.state_change < statement_timestamp() - @idle::interval
      AND activity.datname = current_database()
      AND pg_has_role(activity.usesysid, 'USAGE')
      AND locks.locktype = 'transactionid'
      AND locks.granted
)
SELECT activity.pid::integer AS pid,
       activity.application_name::text AS application_name,
       activity.backend_start::timestamptz AS backend_start,
       NULL::uuid AS job_id,
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
UNION ALL
SELECT idle.pid, idle.application_name, idle.backend_start, job.id, pg_terminate_backend(idle.pid)
FROM idle
CROSS JOIN LATERAL (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status = 'running'
      AND jobs.lease_expires_at < statement_timestamp() - @idle
      AND jobs.xmax = idle.transactionid
      AND NOT EXISTS (
          SELECT
          FROM outbox.lease_extensions AS beside
          WHERE beside.job_id = jobs.id AND beside.epoch = jobs.epoch AND beside.expires_at >= statement_timestamp() - @idle)
    ORDER BY jobs.lease_expires_at
    LIMIT 1
) AS job
LIMIT 1000;
