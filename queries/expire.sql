-- name: ExpireLeases :many
-- ExpireLeases takes up to @max_jobs jobs away from workers whose leases lapsed
-- within [@from, @before): to retrying, or to dead once the attempts are used up
-- or the job has cost too many workers. It returns them and the database's time,
-- which is in the one row without a job if there are none.
--
-- A lease that is extended between this statement's snapshot and its lock is
-- judged anew by its new version, and kept. A row that somebody has locked (a
-- handler that called Complete and has not committed yet) is skipped.
WITH lapsed AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch, jobs.attempt, jobs.max_attempts, jobs.lost_leases,
           jobs.lease_owner, jobs.lease_expires_at, jobs.started_at
    FROM outbox.jobs
    WHERE jobs.status = 'running'
      -- When the clock was set back, the remembered position lies in the future.
      AND jobs.lease_expires_at >= least(@from_lease::timestamptz, statement_timestamp() - @overlap::interval)
      AND jobs.lease_expires_at < least(@before_lease::timestamptz, statement_timestamp())
    ORDER BY jobs.lease_expires_at
    LIMIT @max_jobs
    FOR UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT lapsed.*,
           -- Claimed before this server started, or from the primary that this
           -- one was the standby of: nobody could extend the lease meanwhile.
           (lapsed.started_at < greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp())) AS outage,
           format('the lease of worker %s lapsed at %s: it died, stalled or could not reach the database',
               lapsed.lease_owner, to_char(lapsed.lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"')) AS message
    FROM lapsed
), recorded AS (
    INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message)
    SELECT id, epoch, attempt, lease_owner, started_at, 'lease_lost', message
    FROM judged
    ON CONFLICT DO NOTHING
), expired AS (
    UPDATE outbox.jobs
    SET status = CASE
            WHEN judged.attempt >= judged.max_attempts AND NOT judged.outage THEN 'dead'
            WHEN judged.lost_leases + 1 >= 2 * judged.max_attempts + 10 THEN 'dead'
            ELSE 'retrying'
        END::outbox.job_status,
        epoch              = jobs.epoch + 1,
        attempt            = jobs.attempt - CASE WHEN judged.outage THEN 1 ELSE 0 END,
        lost_leases        = jobs.lost_leases + 1,
        -- The first time a job keeps its place in the queue. Then it waits for 1,
        -- 3, 7 and at last 60 s, so that one that kills its workers leaves them some peace.
        run_at             = CASE
            WHEN judged.lost_leases = 0 THEN jobs.run_at
            ELSE statement_timestamp() + least((1 << least(judged.lost_leases, 6)) - 1, 60) * interval '1 second'
        END,
        lease_owner        = NULL,
        lease_expires_at   = NULL,
        last_error_code    = 'lease_lost',
        last_error_message = judged.message
    FROM judged
    WHERE jobs.id = judged.id
    RETURNING jobs.id, jobs.kind, jobs.queue, jobs.status, jobs.attempt, judged.lease_owner, judged.lease_expires_at
)
SELECT clock.now::timestamptz AS now,
       expired.id, coalesce(expired.kind, '')::text AS kind, coalesce(expired.queue, '')::text AS queue,
       coalesce(expired.status::text, '')::text AS status, coalesce(expired.attempt, 0)::integer AS attempt,
       coalesce(expired.lease_owner, '')::text AS worker, expired.lease_expires_at,
       ((CASE WHEN expired.id IS NOT NULL THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM (SELECT statement_timestamp() AS now) AS clock
LEFT JOIN expired ON true
LIMIT 10000;
