-- name: SettleSucceeded :many
-- SettleSucceeded moves finished jobs into the history and returns the ids that
-- it moved; the others' leases were lost. (id, epoch) is the whole fence. From the
-- job's deadline on it is refused, whether or not a reaper has come yet.
--
-- Rows are looked up whatever the server knows of the table: = ANY (ARRAY[…]) is no
-- equality to it that could be merged, so it sees no use in scanning the primary
-- key, and status = 'running', which would let it scan the index of leases, is
-- not asked for. A plan made on an empty table would otherwise scan for as long as
-- the session lives. It is the same wherever a list of ids is given: docs/adr/0013.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@results::bytea[]) AS result
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
    RETURNING {{jobs}}, (input).result AS result
)
INSERT INTO outbox.history ({{history}}, result)
SELECT {{closed "'succeeded'"}}, result
FROM done
RETURNING id;

-- name: SettleUnfinished :many
-- SettleUnfinished takes jobs out of running that are not done: retrying, failed
-- and dead with the attempt recorded; pending (snoozed or interrupted) with the
-- attempt given back. Each raises the epoch. A NULL delay leaves run_at alone.
-- It returns the ids that it settled; the others' leases were lost, or they have
-- been cancelled or are past their deadline: CloseAttempts is for those.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])                    AS id,
           unnest(@epochs::bigint[])               AS epoch,
           unnest(@statuses::text[])::outbox.job_status AS status,
           unnest(@delays::interval[])             AS delay,
           nullif(unnest(@error_codes::text[]), '')    AS error_code,
           nullif(unnest(@error_messages::text[]), '') AS error_message,
           nullif(unnest(@stacks::text[]), '')         AS stack,
           nullif(unnest(@fingerprints::text[]), '')   AS fingerprint,
           nullif(unnest(@traces::text[]), '')         AS trace -- the array is NULL where no attempt has a span
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
        -- An interrupted attempt says nothing of an outage; every other outcome ends it.
        unavailable_since  = CASE WHEN input.status = 'pending' AND input.delay IS NULL THEN jobs.unavailable_since END,
        failed_at          = CASE WHEN input.status IN ('failed', 'dead') THEN statement_timestamp() END,
        error_fingerprint  = input.fingerprint
    FROM input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND jobs.cancel_requested_at IS NULL
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
    RETURNING jobs.id, jobs.epoch, jobs.attempt, jobs.started_at, jobs.tenant_id,
        (input).error_code AS error_code, (input).error_message AS error_message, (input).stack AS stack,
        (input).trace AS trace
), recorded AS (
    -- Of what was settled, not of what was found: a job that another settled
    -- meanwhile has no trace of our attempt.
    INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, stack, tenant_id, trace)
    SELECT id, epoch - 1, attempt, @worker::text, started_at, error_code, coalesce(error_message, ''), stack, tenant_id, trace
    FROM settled
    WHERE error_code IS NOT NULL
    ON CONFLICT DO NOTHING
)
SELECT id FROM settled LIMIT 100000;

-- name: FindSucceeded :many
-- FindSucceeded returns those of the given attempts that have succeeded.
SELECT history.id
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch) AS input
JOIN outbox.history ON history.id = ANY (ARRAY[input.id]) AND history.epoch = input.epoch
WHERE history.status = 'succeeded'
LIMIT 100000;

-- name: FindLocked :many
-- FindLocked returns those of the given jobs whose rows somebody else has locked.
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
