-- name: ExpireLeases :many
-- ExpireLeases takes up to @max_jobs jobs away from workers whose leases lapsed within [@from, @before). They become
-- retrying, or dead once their attempts are used up or they have cost too many workers; cancelled ones move to the
-- history. A lease that lapsed because the database was unreachable (reaper/outage.go) costs its job neither an attempt
-- nor a lost lease. A job with a key may have a policy of its own: it closes as stale, or becomes dead and its key is
-- parked. It returns the jobs; the database's time, in a single row without a job if there are none; how soon the first
-- deadline from @from_deadline on comes, if that is within @horizon, because a pass over the deadlines is made only
-- when there is one; and how soon the next lease lapses, if that is within @lease_horizon, because the next pass waits
-- for it. It takes only jobs @among, if there are any, and none @skipped.
--
-- If a lease is extended between this statement's snapshot and its lock, the condition is evaluated again on the new
-- version, and the lease is kept. If a job's key must be parked while another transaction has the key locked, a later
-- pass takes the job. A locked row (of a handler that called Guard or Complete and has not committed yet) is skipped.
-- Meanwhile its worker extends the lease in lease_extensions, from long before it lapses, so that the COMMIT of the
-- handler's transaction does not give the job to another worker:
--
--	handler      BEGIN, Guard                                          COMMIT  …works on
--	extensions       locked: beside     locked: beside     …beside               …the row
--	reapers                    lapsed: locked    lapsed: locked           lapsed: extended beside
WITH lapsed AS MATERIALIZED (
    SELECT jobs.id, jobs.tenant_id, jobs.epoch, jobs.attempt, jobs.max_attempts, jobs.lost_leases,
           jobs.lease_owner, jobs.lease_expires_at, jobs.started_at, jobs.cancel_requested_at, jobs.kind, jobs.queue,
           jobs.key, CASE WHEN jobs.key IS NOT NULL THEN jobs.on_lapse END AS on_lapse -- without a key it means nothing
    FROM outbox.jobs
    WHERE jobs.status = 'running'
      -- If the clock was set back, the remembered position lies in the future.
      AND jobs.lease_expires_at >= least(@from_lease::timestamptz, statement_timestamp() - @overlap::interval)
      AND jobs.lease_expires_at < least(@before_lease::timestamptz, statement_timestamp())
      AND NOT EXISTS (
          SELECT
          FROM outbox.lease_extensions AS beside
          WHERE beside.job_id = jobs.id AND beside.epoch = jobs.epoch AND beside.expires_at > statement_timestamp())
      AND (@among::uuid[] IS NULL OR jobs.id = ANY (@among))
      AND (@skipped::uuid[] IS NULL OR jobs.id <> ALL (@skipped))
      -- Other jobs must not wait for a key that another transaction has locked.
      AND (jobs.on_lapse IS DISTINCT FROM 'block' OR jobs.key IS NULL OR jobs.cancel_requested_at IS NOT NULL OR (
          -- One lookup for each job: NOT EXISTS may read all keys.
          SELECT true
          FROM outbox.keys
          WHERE keys.tenant_id = jobs.tenant_id AND keys.queue = jobs.queue AND keys.key = jobs.key
          LIMIT 1
      ) IS NULL OR EXISTS (
          SELECT
          FROM outbox.keys
          WHERE keys.tenant_id = jobs.tenant_id AND keys.queue = jobs.queue AND keys.key = jobs.key
          FOR UPDATE SKIP LOCKED))
    ORDER BY jobs.lease_expires_at
    LIMIT @max_jobs
    FOR UPDATE SKIP LOCKED
), judged AS MATERIALIZED (
    SELECT lapsed.*,
           format('the lease of worker %s lapsed at %s: %s',
               lapsed.lease_owner, to_char(lapsed.lease_expires_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"'),
               CASE WHEN lapsed.outage THEN 'the database was away' ELSE 'it died, stalled or could not reach the database' END) AS message
    FROM (
        SELECT lapsed.*,
               -- The job was claimed before this server started, or from the primary of which this server was the
               -- standby: nobody could extend the lease meanwhile. Or it lapsed in an outage that the reaper has seen,
               -- or soon after one.
               coalesce(lapsed.started_at < greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp())
                   OR (lapsed.lease_expires_at >= @outage_from::timestamptz AND lapsed.lease_expires_at < @outage_until::timestamptz
                       AND lapsed.started_at < @outage_end::timestamptz)
                   OR (lapsed.lease_expires_at >= @seen::timestamptz
                       AND statement_timestamp() - @away_since::timestamptz > @patience::interval), false) AS outage
        FROM lapsed
    ) AS lapsed
), sentenced AS MATERIALIZED (
    SELECT judged.*,
        CASE
            WHEN judged.on_lapse = 'block' THEN 'dead'
            WHEN judged.outage THEN 'retrying'
            WHEN judged.attempt >= judged.max_attempts THEN 'dead'
            WHEN judged.lost_leases + 1 >= 2 * judged.max_attempts + 10 THEN 'dead'
            ELSE 'retrying'
        END::outbox.job_status AS status
    FROM judged
), expired AS (
    UPDATE outbox.jobs
    SET status             = sentenced.status,
        epoch              = jobs.epoch + 1,
        -- An outage gives the attempt back to a job that runs again. One that ends here keeps it.
        attempt            = jobs.attempt - (sentenced.outage AND sentenced.status = 'retrying')::integer,
        lost_leases        = jobs.lost_leases + CASE WHEN sentenced.outage THEN 0 ELSE 1 END,
        -- The first time, and after an outage, a job keeps its place in the queue. Later it waits for 1, 3, 7 and
        -- finally 60 s, so that a job that kills its workers leaves them some time.
        run_at             = CASE
            WHEN sentenced.lost_leases = 0 OR sentenced.outage THEN jobs.run_at
            ELSE statement_timestamp() + least((1 << least(sentenced.lost_leases, 6)) - 1, 60) * interval '1 second'
        END,
        lease_owner        = NULL,
        lease_expires_at   = NULL,
        last_error_code    = 'lease_lost',
        last_error_message = sentenced.message,
        failed_at          = CASE WHEN sentenced.status = 'dead' THEN statement_timestamp() END,
        -- The same as internal/fingerprint computes for an empty message.
        error_fingerprint  = CASE WHEN sentenced.status = 'dead' THEN
            left(encode(sha256(convert_to(jobs.kind || E'\nlease_lost\n', 'UTF8')), 'hex'), 16) END
    FROM sentenced
    WHERE jobs.id = ANY (ARRAY[sentenced.id])
      AND sentenced.cancel_requested_at IS NULL
      AND sentenced.on_lapse IS DISTINCT FROM 'fail-stale'
    RETURNING jobs.id, jobs.tenant_id, jobs.key, jobs.kind, jobs.queue, jobs.status, jobs.attempt, sentenced.lease_owner, sentenced.lease_expires_at
), parked AS (
    INSERT INTO outbox.keys AS k (tenant_id, queue, key, parked_at, parked_for)
    SELECT DISTINCT ON (tenant_id, queue, key) tenant_id, queue, key, statement_timestamp(), id
    FROM expired
    WHERE id IN (SELECT judged.id FROM judged WHERE judged.on_lapse = 'block')
    ORDER BY tenant_id, queue, key, id
    ON CONFLICT (tenant_id, queue, key) DO UPDATE
    SET parked_at  = coalesce(k.parked_at, excluded.parked_at),
        parked_for = CASE WHEN k.parked_at IS NULL THEN excluded.parked_for ELSE k.parked_for END,
        park_at    = NULL
), closed AS MATERIALIZED (
    SELECT outbox.close_jobs(array_agg(asked.id), array_agg(asked.epoch),
               array_agg(CASE WHEN asked.cancel_requested_at IS NULL THEN 'stale' ELSE 'cancelled' END::outbox.job_status),
               array_agg('lease_lost'::text), array_agg(asked.message)) AS id
    -- Closing a job moves its payload: only a few at a time, so that the statement ends in time. The other jobs are
    -- returned unchanged.
    FROM (SELECT * FROM judged WHERE judged.cancel_requested_at IS NOT NULL OR judged.on_lapse = 'fail-stale' LIMIT 50) AS asked
    HAVING count(*) > 0
), recorded AS (
    -- A job that is left for the next statement is still its worker's: until then it may end in another way.
    INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, tenant_id)
    SELECT id, epoch, attempt, lease_owner, started_at, 'lease_lost', message, tenant_id
    FROM judged
    WHERE (cancel_requested_at IS NULL AND on_lapse IS DISTINCT FROM 'fail-stale')
       OR id IN (SELECT closed.id FROM closed)
    ON CONFLICT DO NOTHING
), ended AS (
    SELECT id, tenant_id, key, kind, queue, status, attempt, lease_owner, lease_expires_at FROM expired
    UNION ALL
    SELECT judged.id, judged.tenant_id, judged.key, judged.kind, judged.queue,
           CASE WHEN judged.id NOT IN (SELECT closed.id FROM closed) THEN 'running'
                WHEN judged.cancel_requested_at IS NULL THEN 'stale'
                ELSE 'cancelled' END::outbox.job_status,
           judged.attempt, judged.lease_owner, judged.lease_expires_at
    FROM judged
    WHERE judged.cancel_requested_at IS NOT NULL OR judged.on_lapse = 'fail-stale'
)
SELECT clock.now::timestamptz AS now,
       -- Without a row there are no keys to sweep. Looking for a row would read every dead row before it.
       (pg_relation_size('outbox.keys'::regclass) > 0)::boolean AS keyed,
       coalesce(clock.deadline_in_seconds, 'infinity')::double precision AS deadline_in_seconds,
       coalesce(clock.lapses_in_seconds, 'infinity')::double precision AS lapses_in_seconds,
       ended.id, coalesce(ended.kind, '')::text AS kind, coalesce(ended.queue, '')::text AS queue,
       coalesce(ended.status::text, '')::text AS status, coalesce(ended.attempt, 0)::integer AS attempt,
       coalesce(ended.lease_owner, '')::text AS worker, ended.lease_expires_at, ended.tenant_id, coalesce(ended.key, '')::text AS key,
       ((CASE WHEN ended.id IS NOT NULL THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM (
    SELECT statement_timestamp() AS now, (
        SELECT extract(epoch FROM jobs.deadline - statement_timestamp())
        FROM outbox.jobs
        WHERE jobs.deadline IS NOT NULL
          AND jobs.status NOT IN ('failed', 'dead')
          AND jobs.deadline >= least(@from_deadline::timestamptz, statement_timestamp() - @overlap::interval)
          AND jobs.deadline <= statement_timestamp() + @horizon::interval
        ORDER BY jobs.deadline
        LIMIT 1) AS deadline_in_seconds, (
        SELECT extract(epoch FROM jobs.lease_expires_at - statement_timestamp())
        FROM outbox.jobs
        WHERE jobs.status = 'running'
          AND jobs.lease_expires_at >= statement_timestamp()
          AND jobs.lease_expires_at < statement_timestamp() + @lease_horizon::interval
        ORDER BY jobs.lease_expires_at
        LIMIT 1) AS lapses_in_seconds
) AS clock
LEFT JOIN ended ON true
LIMIT 10000;

-- name: FindLapsedLeases :many
-- FindLapsedLeases returns the jobs that ExpireLeases would take.
SELECT jobs.id, jobs.lease_expires_at
FROM outbox.jobs
WHERE jobs.status = 'running'
  AND jobs.lease_expires_at >= least(@from_lease::timestamptz, statement_timestamp() - @overlap::interval)
  AND jobs.lease_expires_at < least(@before_lease::timestamptz, statement_timestamp())
  AND NOT EXISTS (
      SELECT
      FROM outbox.lease_extensions AS beside
      WHERE beside.job_id = jobs.id AND beside.epoch = jobs.epoch AND beside.expires_at > statement_timestamp())
  AND (@skipped::uuid[] IS NULL OR jobs.id <> ALL (@skipped))
ORDER BY jobs.lease_expires_at
LIMIT @max_jobs
FOR UPDATE SKIP LOCKED;
