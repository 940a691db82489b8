-- name: SettleSucceeded :many
-- SettleSucceeded moves finished jobs into the history and returns the ids that it moved; the leases of the others were
-- lost. (id, epoch, started_at) is the whole fence, as for every write of a worker. The epoch changes with each claim
-- and each loss of one. The start distinguishes two claims that have the same epoch because a failover has lost the
-- first of them; NULL, which no dispatcher passes, stands for any. From a job's deadline on its success is refused,
-- whether or not a reaper has come yet.
--
-- The rows are found by the primary key, whatever statistics the server has. The planner cannot use = ANY (ARRAY[…])
-- for a merge join, so it has no reason to scan the whole primary key. The statement does not ask for status =
-- 'running', which would allow a scan of the index of leases. Otherwise a plan made on an empty table would scan for as
-- long as the session lives. The same applies wherever a statement is given a list of ids: docs/adr/0013.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@starts::timestamptz[]) AS started_at,
           unnest(@results::bytea[]) AS result
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
      AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
    RETURNING {{jobs}}, (input).result AS result
)
INSERT INTO outbox.history ({{history}}, result)
SELECT {{closed "'succeeded'"}}, result
FROM done
RETURNING id;

-- name: SettleStreamed :many
-- SettleStreamed is SettleSucceeded for streamed jobs: it stores their events with one INSERT, where a trigger would
-- store each separately, and counts them.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@starts::timestamptz[]) AS started_at,
           unnest(@results::bytea[]) AS result
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
      AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
      AND (SELECT outbox.counts_events())
    RETURNING {{jobs}}, (input).result AS result, clock_timestamp() AS finished_at
), stored AS (
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    SELECT outbox.job_event_id(id, streamed + 1, epoch, 'completed'), tenant_id, 'job.completed', id, 'application/json',
           convert_to(outbox.job_event_fields(id, tenant_id, 'completed', streamed + 1, status::text, 'succeeded', epoch, attempt, queue, kind, key,
               finished_at, CASE WHEN lost_leases > 0 THEN ',"lost_leases":' || lost_leases::text END)
               || coalesce(outbox.job_event_result(result), '') || '}', 'UTF8'),
           outbox.job_event_headers(headers)
    FROM done
    WHERE streamed IS NOT NULL
)
INSERT INTO outbox.history ({{history}}, result, finished_at)
SELECT {{counted "'succeeded'"}}, result, finished_at
FROM done
RETURNING id;

-- name: SettleUnfinished :many
-- SettleUnfinished takes jobs that are not done out of running: to retrying, failed and dead with the attempt recorded;
-- to pending (snoozed or interrupted) with the attempt given back. Each move raises the epoch. A NULL delay leaves
-- run_at alone. It returns the ids that it settled. The others have lost their leases, have been cancelled, or are past
-- their deadline: CloseAttempts closes the last two.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])                    AS id,
           unnest(@epochs::bigint[])               AS epoch,
           unnest(@starts::timestamptz[])          AS started_at,
           unnest(@statuses::text[])::outbox.job_status AS status,
           unnest(@delays::interval[])             AS delay,
           nullif(unnest(@error_codes::text[]), '')    AS error_code,
           nullif(unnest(@error_messages::text[]), '') AS error_message,
           nullif(unnest(@stacks::text[]), '')         AS stack,
           nullif(unnest(@fingerprints::text[]), '')   AS fingerprint,
           nullif(unnest(@traces::text[]), '')         AS trace -- the array is NULL if no attempt has a span
), settled AS (
    UPDATE outbox.jobs
    SET status             = input.status,
        epoch              = jobs.epoch + 1,
        attempt            = CASE WHEN input.status = 'pending' THEN jobs.attempt - 1 ELSE jobs.attempt END,
        run_at             = coalesce(statement_timestamp() + input.delay, jobs.run_at),
        lease_owner        = NULL,
        lease_expires_at   = NULL,
        last_error_code    = coalesce(input.error_code, jobs.last_error_code),
        last_error_message = coalesce(input.error_message, jobs.last_error_message),
        -- An interrupted attempt says nothing about an outage; every other outcome ends it.
        unavailable_since  = CASE WHEN input.status = 'pending' AND input.delay IS NULL THEN jobs.unavailable_since END,
        failed_at          = CASE WHEN input.status IN ('failed', 'dead') THEN statement_timestamp() END,
        error_fingerprint  = input.fingerprint
    FROM input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND jobs.cancel_requested_at IS NULL
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
      AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
    RETURNING jobs.id, jobs.epoch, jobs.attempt, jobs.started_at, jobs.tenant_id,
        (input).error_code AS error_code, (input).error_message AS error_message, (input).stack AS stack,
        (input).trace AS trace
), recorded AS (
    -- Record what was settled, not what was found: a job that another transaction settled meanwhile must not record our
    -- attempt.
    INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, stack, tenant_id, trace)
    SELECT id, epoch - 1, attempt, @worker::text, started_at, error_code, coalesce(error_message, ''), stack, tenant_id, trace
    FROM settled
    WHERE error_code IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id FROM settled LIMIT 100000;

-- name: FindEnds :many
-- FindEnds returns which of the given attempts have succeeded, and which a reaper has ended at the deadline: that
-- raised the epoch.
SELECT history.id, history.status::text AS status
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch) AS input
JOIN outbox.history ON history.id = ANY (ARRAY[input.id]) AND history.epoch BETWEEN input.epoch AND input.epoch + 1
WHERE (history.status = 'succeeded' AND history.epoch = input.epoch)
   OR (history.status = 'expired' AND history.epoch = input.epoch + 1)
LIMIT 100000;

-- name: FindLocked :many
-- FindLocked returns which of the given jobs have rows that another transaction has locked.
WITH free AS MATERIALIZED (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.id = ANY (@ids::uuid[])
    ORDER BY jobs.id
    FOR UPDATE SKIP LOCKED
)
SELECT jobs.id
FROM outbox.jobs
WHERE jobs.id = ANY (@ids::uuid[])
  AND jobs.id NOT IN (SELECT free.id FROM free)
LIMIT 100000;
