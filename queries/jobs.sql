-- name: FindJob :many
-- FindJob returns the job, wherever it is: in one statement, so that one that
-- closes meanwhile is seen once.
SELECT {{open "jobs"}}, payload, headers, NULL::bytea AS result, coalesce(deadline <= statement_timestamp(), false)::boolean AS late
FROM outbox.jobs
WHERE jobs.id = @id
UNION ALL
SELECT {{shut "history"}}, payload, headers, result, false
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

-- name: FindReach :one
-- FindReach returns the id, between @after and @before, down to which ListJobs with
-- the same bounds, statuses and tenant reads about @max_rows rows of each of its parts; NULL if
-- it has no more to read.
SELECT greatest((
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status NOT IN ('failed', 'dead')
      AND @statuses::text[] && '{created,pending,blocked,running,retrying}'::text[]
      AND jobs.id < @before
      AND jobs.id > @after
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
    ORDER BY jobs.id DESC
    LIMIT 1 OFFSET @max_rows::integer
), (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND @statuses::text[] && '{failed,dead}'::text[]
      AND jobs.id < @before
      AND jobs.id > @after
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
    ORDER BY jobs.id DESC
    LIMIT 1 OFFSET @max_rows::integer
), (
    SELECT history.id
    FROM outbox.history
    WHERE @statuses::text[] && '{succeeded,cancelled,expired,skipped,stale,dismissed}'::text[]
      AND history.id < @before
      AND history.id > @after
      AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
    ORDER BY history.id DESC
    LIMIT 1 OFFSET @max_rows::integer
))::uuid AS id;

-- name: ListJobs :many
-- ListJobs returns up to @max_rows jobs with an id between @after and @before,
-- newest first, without payloads and results, but for the @skip newest. Each of
-- its three parts is left out when no status of it was asked for; the dead letters
-- have an index of their own, and alone a @fingerprint. @reach is both numbers together. A
-- job finishes after it was created: @created_after spares the partitions before. An open one has not
-- finished.
(
    SELECT {{open "jobs"}}
    FROM outbox.jobs
    WHERE jobs.status NOT IN ('failed', 'dead')
      AND @statuses::text[] && '{created,pending,blocked,running,retrying}'::text[]
      AND jobs.status = ANY ((@statuses::text[])::outbox.job_status[])
      AND jobs.id < @before
      AND jobs.id > @after
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
      AND (@key::text = '' OR jobs.key = @key)
      AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
      AND (@worker::text = '' OR jobs.lease_owner = @worker)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND jobs.attempt >= @min_attempt::integer
      AND sqlc.narg('finished_after')::timestamptz IS NULL
      AND sqlc.narg('finished_before')::timestamptz IS NULL
      AND (sqlc.narg('parent')::uuid IS NULL OR jobs.parent_id = sqlc.narg('parent'))
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
      AND (sqlc.narg('created_after')::timestamptz IS NULL OR jobs.created_at >= sqlc.narg('created_after'))
      AND (sqlc.narg('created_before')::timestamptz IS NULL OR jobs.created_at < sqlc.narg('created_before'))
    ORDER BY jobs.id DESC
    LIMIT @reach
)
UNION ALL
(
    SELECT {{open "jobs"}}
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND @statuses::text[] && '{failed,dead}'::text[]
      AND jobs.status = ANY ((@statuses::text[])::outbox.job_status[])
      AND jobs.id < @before
      AND jobs.id > @after
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
      AND (@key::text = '' OR jobs.key = @key)
      AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
      AND (@worker::text = '' OR jobs.lease_owner = @worker)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND jobs.attempt >= @min_attempt::integer
      AND sqlc.narg('finished_after')::timestamptz IS NULL
      AND sqlc.narg('finished_before')::timestamptz IS NULL
      AND (sqlc.narg('parent')::uuid IS NULL OR jobs.parent_id = sqlc.narg('parent'))
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
      AND (sqlc.narg('created_after')::timestamptz IS NULL OR jobs.created_at >= sqlc.narg('created_after'))
      AND (sqlc.narg('created_before')::timestamptz IS NULL OR jobs.created_at < sqlc.narg('created_before'))
    ORDER BY jobs.id DESC
    LIMIT @reach
)
UNION ALL
(
    SELECT {{shut "history"}}
    FROM outbox.history
    WHERE @statuses::text[] && '{succeeded,cancelled,expired,skipped,stale,dismissed}'::text[]
      AND history.status = ANY ((@statuses::text[])::outbox.job_status[])
      AND history.id < @before
      AND history.id > @after
      AND (@kind::text = '' OR history.kind = @kind)
      AND (@queue::text = '' OR history.queue = @queue)
      AND (@key::text = '' OR history.key = @key)
      AND @fingerprint::text = ''
      AND (@worker::text = '' OR history.worker = @worker)
      AND (@error_code::text = '' OR history.last_error_code = @error_code)
      AND history.attempt >= @min_attempt::integer
      AND (sqlc.narg('finished_after')::timestamptz IS NULL OR history.finished_at >= sqlc.narg('finished_after'))
      AND (sqlc.narg('finished_before')::timestamptz IS NULL OR history.finished_at < sqlc.narg('finished_before'))
      AND (sqlc.narg('parent')::uuid IS NULL OR history.parent_id = sqlc.narg('parent'))
      AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
      AND (sqlc.narg('created_after')::timestamptz IS NULL OR history.created_at >= sqlc.narg('created_after') AND history.finished_at >= sqlc.narg('created_after'))
      AND (sqlc.narg('created_before')::timestamptz IS NULL OR history.created_at < sqlc.narg('created_before'))
    ORDER BY history.id DESC
    LIMIT @reach
)
ORDER BY id DESC
OFFSET sqlc.arg(skip)
LIMIT @max_rows;

-- name: RetryJob :many
-- RetryJob makes a dead letter pending again with all its attempts, and a job
-- that waits due at once, and wakes the dispatchers. It raises the epoch, so that
-- no earlier worker of the job can write any more. A job whose deadline has passed
-- stays as it is: it would expire instead. It returns the status that it found,
-- and whether it moved the job; nothing if the job is not open. Of jobs in another
-- status than those of @among it moves none, if there are any.
WITH found AS MATERIALIZED (
    SELECT jobs.id, jobs.status, jobs.deadline <= statement_timestamp() AS is_late, jobs.attempt, jobs.lost_leases, jobs.run_at, jobs.last_error_code
    FROM outbox.jobs
    WHERE jobs.id = @id
    FOR UPDATE
), moved AS (
    UPDATE outbox.jobs
    SET status      = CASE WHEN found.status IN ('failed', 'dead') THEN 'pending' ELSE found.status END,
        epoch       = jobs.epoch + 1,
        attempt     = CASE WHEN found.status IN ('failed', 'dead') THEN 0 ELSE jobs.attempt END,
        lost_leases = CASE WHEN found.status IN ('failed', 'dead') THEN 0 ELSE jobs.lost_leases END,
        run_at      = least(jobs.run_at, statement_timestamp()),
        unavailable_since = CASE WHEN found.status IN ('failed', 'dead') THEN NULL ELSE jobs.unavailable_since END,
        failed_at         = NULL,
        error_fingerprint = NULL
    FROM found
    WHERE jobs.id = ANY (ARRAY[found.id])
      AND found.status IN ('pending', 'retrying', 'failed', 'dead')
      AND (coalesce(cardinality(@among::text[]), 0) = 0 OR found.status::text = ANY (@among::text[]))
      AND found.is_late IS NOT TRUE
    RETURNING jobs.id, jobs.tenant_id, jobs.queue, jobs.status, jobs.attempt, jobs.run_at
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.retry', moved.tenant_id, moved.id, moved.queue,
        jsonb_build_object('status', found.status, 'attempt', found.attempt, 'lost_leases', found.lost_leases, 'run_at', found.run_at, 'error_code', found.last_error_code),
        jsonb_build_object('status', moved.status, 'attempt', moved.attempt, 'run_at', moved.run_at)
    FROM moved
    JOIN found ON found.id = moved.id
)
SELECT found.status::text AS status,
       -- It could have been moved otherwise.
       coalesce(found.is_late AND found.status IN ('pending', 'retrying', 'failed', 'dead'), false)::boolean AS late,
       (moved.id IS NOT NULL)::boolean AS moved,
       ((CASE WHEN moved.id IS NOT NULL THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM found
LEFT JOIN moved ON moved.id = found.id
LIMIT 1;

-- name: DismissJob :many
-- DismissJob moves a dead letter into the history and returns its id; nothing if
-- the job is no dead letter, or in no status of @among, if there are any.
WITH dismissed AS MATERIALIZED (
    SELECT jobs.*
    FROM outbox.jobs
    WHERE jobs.id = @id
      AND jobs.status IN ('failed', 'dead')
      AND (coalesce(cardinality(@among::text[]), 0) = 0 OR jobs.status::text = ANY (@among::text[]))
    FOR UPDATE
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.dismiss', tenant_id, id, queue,
        jsonb_build_object('status', status, 'attempt', attempt, 'lost_leases', lost_leases, 'error_code', last_error_code),
        jsonb_build_object('status', 'dismissed')
    FROM dismissed
)
SELECT outbox.close_jobs(array_agg(id), array_agg(epoch), array_agg('dismissed'::outbox.job_status))::uuid AS id
FROM dismissed
HAVING count(*) > 0;
