-- name: CancelJob :one
-- CancelJob cancels a job and returns its status before and after, "" if there is no such open job. It records the act
-- in the audit. If @among is not empty and lacks the job's status, or @at_epoch is not NULL and differs from its epoch,
-- it changes nothing and returns the status with excluded set.
WITH found AS MATERIALIZED ( -- locked, as outbox.cancel does: it finds the job in this status
    SELECT jobs.status, jobs.epoch
    FROM outbox.jobs
    WHERE jobs.id = @id
    FOR UPDATE
), excluded AS MATERIALIZED (
    SELECT found.status
    FROM found
    WHERE (found.status::text <> ALL (@among::text[]) AND cardinality(@among::text[]) > 0)
       OR found.epoch <> sqlc.narg(at_epoch)::bigint
)
SELECT coalesce((SELECT found.status FROM found)::text, '')::text AS was,
       coalesce(CASE WHEN EXISTS (SELECT FROM excluded) THEN (SELECT excluded.status FROM excluded)
                     ELSE outbox.cancel(@id, @actor, @request_id, @reason) END::text, '')::text AS status,
       EXISTS (SELECT FROM excluded) AS excluded;

-- name: ReleaseJob :one
-- ReleaseJob lets a held job run and returns the status in which it found it, "" if the job is not open. It records the
-- act in the audit. If @at_epoch is not NULL and differs from the job's epoch, it changes nothing and returns "".
WITH found AS MATERIALIZED ( -- locked first: the comparison needs the present row, not the snapshot's
    SELECT jobs.epoch
    FROM outbox.jobs
    WHERE jobs.id = @id
    FOR UPDATE
)
SELECT coalesce(CASE WHEN NOT EXISTS (SELECT FROM found WHERE found.epoch <> sqlc.narg(at_epoch)::bigint)
                     THEN outbox.release(@id, @actor, @request_id, @reason) END::text, '')::text AS status;

-- name: ListCancelRequests :many
-- ListCancelRequests returns which of the given attempts have been asked to stop.
SELECT jobs.id, jobs.epoch, jobs.started_at
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@starts::timestamptz[]) AS started_at) AS input
JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
    AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
WHERE jobs.cancel_requested_at IS NOT NULL
LIMIT 100000;

-- name: CloseAttempts :many
-- CloseAttempts closes those of the given attempts that were cancelled, or whose deadline has come: as cancelled or
-- expired, whatever outcome they had, and it records the error if there was one. It returns them; the others had lost
-- their leases.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])            AS id,
           unnest(@epochs::bigint[])       AS epoch,
           unnest(@starts::timestamptz[])  AS started_at,
           unnest(@error_codes::text[])    AS error_code,
           unnest(@error_messages::text[]) AS error_message,
           nullif(unnest(@stacks::text[]), '') AS stack
), ended AS MATERIALIZED (
    SELECT jobs.id, jobs.tenant_id, jobs.epoch, jobs.attempt, jobs.started_at, input.error_code, input.error_message, input.stack,
           CASE WHEN jobs.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'expired' END::outbox.job_status AS outcome
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
        AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
    WHERE jobs.cancel_requested_at IS NOT NULL
       OR jobs.deadline <= clock_timestamp()
    FOR UPDATE
), recorded AS (
    INSERT INTO outbox.attempts (job_id, epoch, attempt, worker, started_at, error_code, error_message, stack, tenant_id)
    SELECT id, epoch, attempt, @worker::text, started_at, error_code, error_message, stack, tenant_id
    FROM ended
    WHERE error_code <> ''
    ON CONFLICT DO NOTHING
), closed AS MATERIALIZED (
    SELECT outbox.close_jobs(array_agg(ended.id), array_agg(ended.epoch), array_agg(ended.outcome),
               array_agg(ended.error_code), array_agg(ended.error_message)) AS id
    FROM ended
    HAVING count(*) > 0
)
SELECT ended.id, ended.outcome::text AS outcome
FROM closed
JOIN ended ON ended.id = closed.id
LIMIT 100000;

-- name: ExpireDeadlines :one
-- ExpireDeadlines closes up to @max_jobs jobs whose deadline has come and lies within [@from_deadline,
-- @before_deadline), in any open status except those of dead letters. It returns where it stopped, and when within
-- @horizon the next deadline comes. Closing a running job raises its epoch, so that its worker can no longer write
-- anything. Before that, a running job stays with its worker for @patience: its success would be refused, but the error
-- of its handler, which is stopped at the deadline, is recorded. A row that another transaction has locked is skipped.
-- It closes only jobs @among, if there are any, and none @skipped. The arrays name the keys of the closed jobs: the
-- jobs behind them may be next.
WITH late AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch, jobs.deadline, jobs.tenant_id, jobs.queue, jobs.key
    FROM outbox.jobs
    WHERE jobs.deadline IS NOT NULL
      AND jobs.status NOT IN ('failed', 'dead')
      -- If the clock was set back, the remembered position lies in the future.
      AND jobs.deadline >= least(@from_deadline::timestamptz, statement_timestamp() - @overlap::interval)
      AND jobs.deadline < @before_deadline::timestamptz
      AND jobs.deadline <= statement_timestamp()
      AND (jobs.status <> 'running' OR jobs.deadline <= statement_timestamp() - @patience::interval)
      AND (@among::uuid[] IS NULL OR jobs.id = ANY (@among))
      AND (@skipped::uuid[] IS NULL OR jobs.id <> ALL (@skipped))
    ORDER BY jobs.deadline
    LIMIT @max_jobs
    FOR UPDATE SKIP LOCKED
), closed AS MATERIALIZED (
    SELECT outbox.close_jobs(array_agg(late.id), array_agg(late.epoch), array_agg('expired'::outbox.job_status)) AS id
    FROM late
    HAVING count(*) > 0
), freed AS MATERIALIZED (
    SELECT DISTINCT late.tenant_id, late.queue, late.key
    FROM late
    WHERE late.key IS NOT NULL
    ORDER BY late.tenant_id, late.queue, late.key
)
SELECT statement_timestamp()::timestamptz AS now,
       ARRAY(SELECT freed.tenant_id FROM freed)::uuid[] AS tenant_ids,
       ARRAY(SELECT freed.queue FROM freed)::text[] AS queues,
       ARRAY(SELECT freed.key FROM freed)::text[] AS keys,
       (SELECT count(*) FROM closed) AS closed,
       (SELECT max(late.deadline) FROM late)::timestamptz AS reached,
       coalesce((
           SELECT extract(epoch FROM jobs.deadline - statement_timestamp()
                      + CASE WHEN jobs.status = 'running' THEN @patience::interval ELSE '0' END)
           FROM outbox.jobs
           WHERE jobs.deadline IS NOT NULL
             AND jobs.status NOT IN ('failed', 'dead')
             AND jobs.deadline > statement_timestamp() - @patience::interval
             AND (jobs.deadline > statement_timestamp() OR jobs.status = 'running')
             AND jobs.deadline <= statement_timestamp() + @horizon::interval
           ORDER BY jobs.deadline
           LIMIT 1), 'infinity')::double precision AS next_in_seconds;

-- name: FindLateJobs :many
-- FindLateJobs returns the jobs that ExpireDeadlines would close.
SELECT jobs.id, jobs.deadline
FROM outbox.jobs
WHERE jobs.deadline IS NOT NULL
  AND jobs.status NOT IN ('failed', 'dead')
  AND jobs.deadline >= least(@from_deadline::timestamptz, statement_timestamp() - @overlap::interval)
  AND jobs.deadline < @before_deadline::timestamptz
  AND jobs.deadline <= statement_timestamp()
  AND (jobs.status <> 'running' OR jobs.deadline <= statement_timestamp() - @patience::interval)
  AND (@skipped::uuid[] IS NULL OR jobs.id <> ALL (@skipped))
ORDER BY jobs.deadline
LIMIT @max_jobs
FOR UPDATE SKIP LOCKED;
