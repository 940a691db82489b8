-- name: FindJob :many
-- FindJob returns the job, wherever it is: in one statement, so that one that
-- closes meanwhile is seen once.
SELECT id, tenant_id, queue, kind, status::text AS status, priority, attempt, max_attempts, lost_leases, epoch, coalesce(key, '')::text AS key,
       run_at, created_at, started_at, NULL::timestamptz AS finished_at, lease_expires_at, coalesce(lease_owner, '')::text AS worker,
       timeout, content_type, payload, headers, NULL::bytea AS result,
       coalesce(last_error_code, '')::text AS error_code, coalesce(last_error_message, '')::text AS error_message
FROM outbox.jobs
WHERE jobs.id = @id
UNION ALL
SELECT id, tenant_id, queue, kind, status::text, priority, attempt, max_attempts, lost_leases, epoch, coalesce(key, '')::text,
       run_at, created_at, started_at, finished_at, NULL::timestamptz, coalesce(worker, '')::text,
       timeout, content_type, payload, headers, result,
       coalesce(last_error_code, '')::text, coalesce(last_error_message, '')::text
FROM outbox.history
WHERE history.id = @id
LIMIT 1;

-- name: ListAttempts :many
-- ListAttempts returns the newest @max_rows failed attempts of a job, newest first.
SELECT epoch, attempt, worker, started_at, finished_at, error_code, error_message, coalesce(stack, '')::text AS stack
FROM outbox.attempts
WHERE job_id = @job_id
ORDER BY epoch DESC
LIMIT @max_rows;

-- name: ListJobs :many
-- ListJobs returns up to @max_rows jobs with an id below @before, newest first,
-- without payloads and results. Each of its three parts is left out when no
-- status of it was asked for; the dead letters have an index of their own.
(
    SELECT jobs.id, jobs.tenant_id, jobs.queue, jobs.kind, jobs.status::text AS status, jobs.priority, jobs.attempt, jobs.max_attempts,
           jobs.lost_leases, jobs.epoch, coalesce(jobs.key, '')::text AS key, jobs.run_at, jobs.created_at, jobs.started_at,
           NULL::timestamptz AS finished_at, jobs.lease_expires_at, coalesce(jobs.lease_owner, '')::text AS worker, jobs.timeout,
           jobs.content_type, octet_length(jobs.payload) AS payload_bytes,
           coalesce(jobs.last_error_code, '')::text AS error_code, coalesce(jobs.last_error_message, '')::text AS error_message
    FROM outbox.jobs
    WHERE jobs.status NOT IN ('failed', 'dead')
      AND @statuses::text[] && '{created,pending,blocked,running,retrying}'::text[]
      AND jobs.status::text = ANY (@statuses::text[])
      AND jobs.id < @before
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
    ORDER BY jobs.id DESC
    LIMIT @max_rows
)
UNION ALL
(
    SELECT jobs.id, jobs.tenant_id, jobs.queue, jobs.kind, jobs.status::text AS status, jobs.priority, jobs.attempt, jobs.max_attempts,
           jobs.lost_leases, jobs.epoch, coalesce(jobs.key, '')::text, jobs.run_at, jobs.created_at, jobs.started_at,
           NULL::timestamptz, jobs.lease_expires_at, coalesce(jobs.lease_owner, '')::text, jobs.timeout,
           jobs.content_type, octet_length(jobs.payload),
           coalesce(jobs.last_error_code, '')::text, coalesce(jobs.last_error_message, '')::text
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND @statuses::text[] && '{failed,dead}'::text[]
      AND jobs.status::text = ANY (@statuses::text[])
      AND jobs.id < @before
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
    ORDER BY jobs.id DESC
    LIMIT @max_rows
)
UNION ALL
(
    SELECT history.id, history.tenant_id, history.queue, history.kind, history.status::text, history.priority, history.attempt, history.max_attempts,
           history.lost_leases, history.epoch, coalesce(history.key, '')::text, history.run_at, history.created_at, history.started_at,
           history.finished_at, NULL::timestamptz, coalesce(history.worker, '')::text, history.timeout,
           history.content_type, octet_length(history.payload),
           coalesce(history.last_error_code, '')::text, coalesce(history.last_error_message, '')::text
    FROM outbox.history
    WHERE @statuses::text[] && '{succeeded,cancelled,expired,skipped,stale,dismissed}'::text[]
      AND history.status::text = ANY (@statuses::text[])
      AND history.id < @before
      AND (@kind::text = '' OR history.kind = @kind)
      AND (@queue::text = '' OR history.queue = @queue)
    ORDER BY history.id DESC
    LIMIT @max_rows
)
ORDER BY id DESC
LIMIT @max_rows;

-- name: RetryJob :many
-- RetryJob makes a dead letter pending again with all its attempts, and a job
-- that waits due at once, and wakes the dispatchers. It raises the epoch, so that
-- no earlier worker of the job can write any more. It returns the status that it
-- found, and whether it moved the job; nothing if the job is not open.
WITH found AS MATERIALIZED (
    SELECT jobs.id, jobs.status
    FROM outbox.jobs
    WHERE jobs.id = @id
    FOR UPDATE
), moved AS (
    UPDATE outbox.jobs
    SET status      = CASE WHEN found.status IN ('failed', 'dead') THEN 'pending' ELSE found.status END,
        epoch       = jobs.epoch + 1,
        attempt     = CASE WHEN found.status IN ('failed', 'dead') THEN 0 ELSE jobs.attempt END,
        lost_leases = CASE WHEN found.status IN ('failed', 'dead') THEN 0 ELSE jobs.lost_leases END,
        run_at      = least(jobs.run_at, statement_timestamp())
    FROM found
    WHERE jobs.id = found.id
      AND found.status IN ('pending', 'retrying', 'failed', 'dead')
    RETURNING jobs.id
)
SELECT found.status::text AS status,
       (moved.id IS NOT NULL)::boolean AS moved,
       ((CASE WHEN moved.id IS NOT NULL THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM found
LEFT JOIN moved ON moved.id = found.id
LIMIT 1;

-- name: DismissJob :many
-- DismissJob moves a dead letter into the history and returns its id; nothing if
-- the job is no dead letter.
WITH dismissed AS (
    DELETE FROM outbox.jobs
    WHERE jobs.id = @id
      AND jobs.status IN ('failed', 'dead')
    RETURNING jobs.*
)
INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt,
    max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout,
    last_error_code, last_error_message)
SELECT id, tenant_id, run_at, created_at, started_at, epoch + 1, 'dismissed', status, attempt,
    max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout,
    last_error_code, last_error_message
FROM dismissed
RETURNING id;
