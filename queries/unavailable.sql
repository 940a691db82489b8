-- name: SettleUnavailable :many
-- SettleUnavailable takes jobs out of running whose handlers found a dependency unavailable. They become retrying, with
-- the attempt given back and no attempt recorded, for as long as outage_limit from the first such outcome in a row.
-- After that the outcome is a failure like others, and status, delay and fingerprint describe it. A NULL wait means as
-- long as the outage has lasted so far, within 1 s and 5 min. It returns the jobs that it settled and their statuses.
-- The others have lost their leases, have been cancelled, or are past their deadline: CloseAttempts closes the last
-- two.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])                    AS id,
           unnest(@epochs::bigint[])               AS epoch,
           unnest(@starts::timestamptz[])          AS started_at,
           unnest(@outage_limits::interval[])      AS outage_limit,
           unnest(@waits::interval[])              AS wait,
           unnest(@statuses::text[])::outbox.job_status AS status,
           unnest(@delays::interval[])             AS delay,
           unnest(@error_codes::text[])            AS error_code,
           unnest(@error_messages::text[])         AS error_message,
           unnest(@stacks::text[])                 AS stack,
           unnest(@fingerprints::text[])           AS fingerprint,
           nullif(unnest(@traces::text[]), '')     AS trace -- the array is NULL if no attempt has a span
), found AS MATERIALIZED (
    SELECT input.*, coalesce(jobs.unavailable_since, statement_timestamp()) AS since
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
        AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
    WHERE jobs.cancel_requested_at IS NULL
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
    FOR UPDATE
), judged AS MATERIALIZED (
    SELECT found.*, found.since > statement_timestamp() - found.outage_limit AS spared,
           -- Jitter keeps jobs that were postponed together from coming back together.
           greatest(least(statement_timestamp() - found.since, interval '5 minutes'), interval '1 second') * (0.75 + random() / 2) AS growing_wait
    FROM found
), settled AS (
    UPDATE outbox.jobs
    SET status             = CASE WHEN judged.spared THEN 'retrying' ELSE judged.status END,
        epoch              = jobs.epoch + 1,
        attempt            = CASE WHEN judged.spared THEN jobs.attempt - 1 ELSE jobs.attempt END,
        run_at             = CASE
            WHEN judged.spared THEN statement_timestamp() + coalesce(judged.wait, judged.growing_wait)
            ELSE coalesce(statement_timestamp() + judged.delay, jobs.run_at)
        END,
        lease_owner        = NULL,
        lease_expires_at   = NULL,
        last_error_code    = judged.error_code,
        last_error_message = judged.error_message,
        unavailable_since  = CASE WHEN judged.spared OR judged.status = 'retrying' THEN judged.since END,
        failed_at          = CASE WHEN NOT judged.spared AND judged.status IN ('failed', 'dead') THEN statement_timestamp() END,
        error_fingerprint  = CASE WHEN NOT judged.spared THEN nullif(judged.fingerprint, '') END
    FROM judged
    WHERE jobs.id = ANY (ARRAY[judged.id])
    RETURNING jobs.id, jobs.tenant_id, jobs.epoch, jobs.attempt, jobs.started_at, jobs.status,
        judged.spared, judged.error_code, judged.error_message, judged.stack, judged.trace
), recorded AS (
    INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, stack, tenant_id, trace)
    SELECT id, epoch - 1, attempt, @worker::text, started_at, error_code, error_message, nullif(stack, ''), tenant_id, trace
    FROM settled
    WHERE NOT spared
    ON CONFLICT DO NOTHING
)
SELECT id, status::text AS status FROM settled LIMIT 100000;
