-- name: CancelJob :one
-- CancelJob calls a job off and returns its status before and then, "" if there is no such
-- open job. What it does is in the audit. An open job in another status than those of
-- @among, if there are any, or in another epoch than @at_epoch, if that is not NULL, is
-- left alone, and its status is returned with excluded.
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
-- ReleaseJob lets a held job run and returns the status in which it found it, ""
-- if it is not open, or in another epoch than @at_epoch, if that is not NULL. What it
-- does is in the audit.
WITH found AS MATERIALIZED ( -- locked first: it is compared as it is, and not as this statement's snapshot has it
    SELECT jobs.epoch
    FROM outbox.jobs
    WHERE jobs.id = @id
    FOR UPDATE
)
SELECT coalesce(CASE WHEN NOT EXISTS (SELECT FROM found WHERE found.epoch <> sqlc.narg(at_epoch)::bigint)
                     THEN outbox.release(@id, @actor, @request_id, @reason) END::text, '')::text AS status;

-- name: ListCancelRequests :many
-- ListCancelRequests returns those of the given attempts that somebody wants to
-- have stopped.
SELECT jobs.id, jobs.epoch
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch) AS input
JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
WHERE jobs.cancel_requested_at IS NOT NULL
LIMIT 100000;

-- name: CloseAttempts :many
-- CloseAttempts closes those of the given attempts that were cancelled, or whose
-- deadline has come: as cancelled or expired, whatever their outcome was to be,
-- and with the error recorded if there was one. It returns them; of the others
-- the leases were lost.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])            AS id,
           unnest(@epochs::bigint[])       AS epoch,
           unnest(@error_codes::text[])    AS error_code,
           unnest(@error_messages::text[]) AS error_message,
           nullif(unnest(@stacks::text[]), '') AS stack
), ended AS MATERIALIZED (
    SELECT jobs.id, jobs.tenant_id, jobs.epoch, jobs.attempt, jobs.started_at, input.error_code, input.error_message, input.stack,
           CASE WHEN jobs.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'expired' END::outbox.job_status AS outcome
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
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
-- ExpireDeadlines closes up to @max_jobs jobs, in whatever open status but the dead
-- letters', whose deadline has come and lies within [@from_deadline,
-- @before_deadline), and tells where it stopped, and when within @horizon the next
-- one comes. Of a running job this raises the epoch: its worker can write nothing
-- any more. It is left to its worker for @patience: no success is taken from it
-- then, but the words of the handler that it stops. A row that somebody has locked
-- is skipped. It closes none but those @among, if there are any, and none of those
-- @aside. The arrays name the keys of what it closed: the jobs behind may be the next
-- ones.
WITH late AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch, jobs.deadline, jobs.tenant_id, jobs.queue, jobs.key
    FROM outbox.jobs
    WHERE jobs.deadline IS NOT NULL
      AND jobs.status NOT IN ('failed', 'dead')
      -- When the clock was set back, the remembered position lies in the future.
      AND jobs.deadline >= least(@from_deadline::timestamptz, statement_timestamp() - @overlap::interval)
      AND jobs.deadline < @before_deadline::timestamptz
      AND jobs.deadline <= statement_timestamp()
      AND (jobs.status <> 'running' OR jobs.deadline <= statement_timestamp() - @patience::interval)
      AND (@among::uuid[] IS NULL OR jobs.id = ANY (@among))
      AND (@aside::uuid[] IS NULL OR jobs.id <> ALL (@aside))
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
  AND (@aside::uuid[] IS NULL OR jobs.id <> ALL (@aside))
ORDER BY jobs.deadline
LIMIT @max_jobs
FOR UPDATE SKIP LOCKED;
