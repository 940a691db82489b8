-- name: FindJob :many
-- FindJob returns the job, open or closed: in one statement, so that a job that closes meanwhile is seen once. With a
-- @tenant, it returns only jobs of that tenant.
SELECT {{open "jobs"}}, payload, headers, NULL::bytea AS result, coalesce(deadline <= statement_timestamp(), false)::boolean AS late
FROM outbox.jobs
WHERE jobs.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
UNION ALL
SELECT {{shut "history"}}, payload, headers, result, false
FROM outbox.history
WHERE history.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
LIMIT 1;

-- name: FindResult :many
-- FindResult returns the size of a closed job's result and, unless that is more than @most bytes, the result. With a
-- @tenant, it returns only those of that tenant.
SELECT coalesce(octet_length(result), 0)::bigint AS bytes,
       (CASE WHEN octet_length(result) <= @most::bigint THEN result END)::bytea AS result
FROM outbox.history
WHERE history.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
LIMIT 1;

-- name: ListAttempts :many
-- ListAttempts returns the newest @max_rows failed attempts of a job, newest first.
SELECT epoch, attempt, worker, started_at, finished_at, error_code, error_message, coalesce(stack, '')::text AS stack
FROM outbox.attempts
WHERE job_id = @job_id
ORDER BY epoch DESC
LIMIT @max_rows;

-- name: FindReach :one
-- FindReach returns the id, between @after and @before, down to which ListJobs or ListDeadLetters, with the same
-- bounds, statuses and tenant, reads about @max_rows rows of each of its parts; NULL if there are no more to read. It
-- counts what they read, not what they return: open jobs in any status, and dead letters of all tenants, which have one
-- index. Row-level security would leave out rows that they read all the same: see BindTenant.
SELECT greatest((
    SELECT jobs.id
    FROM outbox.jobs
    WHERE @statuses::text[] && '{created,pending,blocked,running,retrying}'::text[]
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
    ORDER BY jobs.id DESC, jobs.error_fingerprint DESC -- in the order of jobs_dead_letter_idx
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

-- name: FindReachAbove :one
-- FindReachAbove returns the id, between @after and @before, below which there are @max_rows dead letters of all
-- tenants: CountDeadLetters and FindDeadLetters, with it as @before, read so many; NULL if there are no more to read.
-- Row-level security would leave out rows that they read all the same: see BindTenant.
SELECT (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND jobs.id < @before
      AND jobs.id > @after
    ORDER BY jobs.id, jobs.error_fingerprint -- in the order of jobs_dead_letter_idx
    LIMIT 1 OFFSET @max_rows::integer
)::uuid AS id;

-- name: BindTenant :one
-- BindTenant ties the rest of the transaction to a tenant, or with * to all of them. It returns what the transaction
-- was tied to before; an empty text if nothing.
WITH was AS MATERIALIZED (
    SELECT coalesce(current_setting('app.tenant_id', true), '') AS tenant
)
SELECT was.tenant::text AS tenant
FROM was
WHERE set_config('app.tenant_id', CASE WHEN was.tenant IS NOT NULL THEN @tenant::text END, true) IS NOT NULL;

-- name: ListJobs :many
-- ListJobs returns up to @max_rows jobs with an id between @after and @before, newest first, without payloads and
-- results, except the @skip newest. It omits each of its three parts if no status of that part was asked for. Dead
-- letters have an index of their own, and only they have a @fingerprint. @contains is searched for in the beginning of
-- a payload, so that a row costs about as much as that: the server need not read everything that pglz has compressed.
-- @reach is the sum of both numbers. A job finishes after it was created: @created_since spares the earlier partitions.
-- An open job has not finished.
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
      AND (@contains::text = '' OR position(convert_to(@contains, 'UTF8') IN substring(jobs.payload FROM 1 FOR 65536)) > 0
          OR strpos(jobs.headers::text, @contains) > 0)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND jobs.attempt >= @min_attempt::integer
      AND sqlc.narg('finished_since')::timestamptz IS NULL
      AND sqlc.narg('finished_until')::timestamptz IS NULL
      AND (sqlc.narg('parent')::uuid IS NULL OR jobs.parent_id = sqlc.narg('parent'))
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
      AND (sqlc.narg('created_since')::timestamptz IS NULL OR jobs.created_at >= sqlc.narg('created_since'))
      AND (sqlc.narg('created_until')::timestamptz IS NULL OR jobs.created_at < sqlc.narg('created_until'))
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
      AND (@contains::text = '' OR position(convert_to(@contains, 'UTF8') IN substring(jobs.payload FROM 1 FOR 65536)) > 0
          OR strpos(jobs.headers::text, @contains) > 0)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND jobs.attempt >= @min_attempt::integer
      AND sqlc.narg('finished_since')::timestamptz IS NULL
      AND sqlc.narg('finished_until')::timestamptz IS NULL
      AND (sqlc.narg('parent')::uuid IS NULL OR jobs.parent_id = sqlc.narg('parent'))
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
      AND (sqlc.narg('created_since')::timestamptz IS NULL OR jobs.created_at >= sqlc.narg('created_since'))
      AND (sqlc.narg('created_until')::timestamptz IS NULL OR jobs.created_at < sqlc.narg('created_until'))
    ORDER BY jobs.id DESC, jobs.error_fingerprint DESC
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
      AND (@contains::text = '' OR position(convert_to(@contains, 'UTF8') IN substring(history.payload FROM 1 FOR 65536)) > 0
          OR strpos(history.headers::text, @contains) > 0)
      AND (@error_code::text = '' OR history.last_error_code = @error_code)
      AND history.attempt >= @min_attempt::integer
      AND (sqlc.narg('finished_since')::timestamptz IS NULL OR history.finished_at >= sqlc.narg('finished_since'))
      AND (sqlc.narg('finished_until')::timestamptz IS NULL OR history.finished_at < sqlc.narg('finished_until'))
      AND (sqlc.narg('parent')::uuid IS NULL OR history.parent_id = sqlc.narg('parent'))
      AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
      AND (sqlc.narg('created_since')::timestamptz IS NULL OR history.created_at >= sqlc.narg('created_since')
          AND history.finished_at >= sqlc.narg('created_since'))
      AND (sqlc.narg('created_until')::timestamptz IS NULL OR history.created_at < sqlc.narg('created_until'))
    ORDER BY history.id DESC
    LIMIT @reach
)
ORDER BY id DESC
OFFSET sqlc.arg(skip)
LIMIT @max_rows;

-- name: RetryJob :many
-- RetryJob makes a dead letter pending again with all its attempts, or a waiting job due at once, and wakes the
-- dispatchers. It raises the epoch, so that no earlier worker of the job can write any more. A job whose deadline has
-- passed stays unchanged: it would expire instead. The audit calls the first job.replay, as ReplayJobs does, and the
-- second job.retry. It returns the status that it found, and whether it moved the job; nothing if the job is not open.
-- If @among is not empty and lacks the job's status, or @at_epoch is not NULL and differs from its epoch, it changes
-- nothing.
WITH found AS MATERIALIZED (
    SELECT jobs.id, jobs.status, jobs.epoch, jobs.deadline <= statement_timestamp() AS is_late, jobs.attempt,
           jobs.lost_leases, jobs.run_at, jobs.last_error_code
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
      AND found.epoch = coalesce(sqlc.narg(at_epoch)::bigint, found.epoch)
      AND found.is_late IS NOT TRUE
    RETURNING jobs.id, jobs.tenant_id, jobs.queue, jobs.status, jobs.attempt, jobs.run_at
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''),
        CASE WHEN found.status IN ('failed', 'dead') THEN 'job.replay' ELSE 'job.retry' END, moved.tenant_id, moved.id, moved.queue,
        jsonb_build_object('status', found.status, 'attempt', found.attempt, 'lost_leases', found.lost_leases,
            'run_at', found.run_at, 'error_code', found.last_error_code),
        jsonb_build_object('status', moved.status, 'attempt', moved.attempt, 'run_at', moved.run_at)
    FROM moved
    JOIN found ON found.id = moved.id
)
SELECT found.status::text AS status,
       -- Without its deadline it could have been moved.
       coalesce(found.is_late AND found.status IN ('pending', 'retrying', 'failed', 'dead'), false)::boolean AS late,
       (moved.id IS NOT NULL)::boolean AS moved,
       ((CASE WHEN moved.id IS NOT NULL THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM found
LEFT JOIN moved ON moved.id = found.id
LIMIT 1;

-- name: EditJobs :many
-- EditJobs changes the queue, the priority or the time of those of @ids that wait as an operation has counted them: in
-- the same epochs, and in a status of @among. It raises the epoch, as every act does. It returns the jobs that it has
-- changed, and wakes the dispatchers.
--
-- The caller has locked the jobs in an earlier statement: a claim that came first has made its jobs running in another
-- epoch, and they are left alone; a claim that comes second finds them locked, or as they are now.
--
-- A time in the past becomes now, because claims continue from where they are. A job whose deadline would have passed
-- by then would only expire, and is left alone. So is a job with a key that would change its queue: the limit and the
-- order of a key hold within a queue. So is a message that a sink has refused: only its relay claims from its queue.
-- Neither depends on the time or the priority: line_position is the place in a
-- line. A blocked job that is no longer due waits like other jobs, because a promotion would treat it as due. If a job
-- of a key is postponed, the jobs blocked behind it move on when this commits (functions/move_freed_key_on.sql).
WITH found AS MATERIALIZED (
    SELECT jobs.id, jobs.status, jobs.queue, jobs.priority, jobs.run_at
    FROM unnest(@ids::uuid[]) AS input(id)
    CROSS JOIN LATERAL (
        SELECT counted.epoch
        FROM outbox.operation_jobs AS counted
        WHERE counted.operation_id = @operation_id AND counted.job_id = input.id
        LIMIT 1
    ) AS meant
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id])
    WHERE jobs.epoch = meant.epoch
      AND jobs.status::text = ANY (@among::text[])
      AND (jobs.queue = coalesce(sqlc.narg(queue)::text, jobs.queue) OR jobs.key IS NULL AND jobs.kind NOT LIKE 'relay:%')
      AND (jobs.deadline IS NULL OR jobs.deadline > greatest(sqlc.narg(run_at)::timestamptz, statement_timestamp()))
    FOR UPDATE
), edited AS (
    UPDATE outbox.jobs
    SET queue    = coalesce(sqlc.narg(queue)::text, jobs.queue),
        priority = coalesce(sqlc.narg(priority)::smallint, jobs.priority),
        run_at   = CASE WHEN sqlc.narg(run_at)::timestamptz IS NULL THEN jobs.run_at ELSE greatest(sqlc.narg(run_at), statement_timestamp()) END,
        status   = CASE WHEN jobs.status = 'blocked' AND sqlc.narg(run_at) > statement_timestamp() THEN 'pending' ELSE jobs.status END,
        epoch    = jobs.epoch + 1
    FROM found
    WHERE jobs.id = ANY (ARRAY[found.id])
    RETURNING jobs.id, jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority, jobs.run_at
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.edit', edited.tenant_id, edited.id, edited.queue,
        jsonb_build_object('status', found.status, 'queue', found.queue, 'priority', found.priority, 'run_at', found.run_at),
        jsonb_build_object('status', edited.status, 'queue', edited.queue, 'priority', edited.priority, 'run_at', edited.run_at)
    FROM edited
    JOIN found ON found.id = edited.id
), freed AS (
    INSERT INTO outbox.freed_keys (tenant_id, queue, key)
    SELECT DISTINCT edited.tenant_id, edited.queue, edited.key
    FROM edited
    WHERE edited.key IS NOT NULL -- a promotion that began before this edit may have passed the job by
), woken AS MATERIALIZED (
    SELECT pg_notify('outbox_jobs', '') AS silent
    FROM (SELECT FROM edited LIMIT 1) AS any_edited
)
SELECT edited.id
FROM edited
LEFT JOIN woken ON woken.silent IS NULL
LIMIT 100000;

-- name: DismissJob :many
-- DismissJob moves a dead letter into the history and returns its id; nothing if the job is not a dead letter, its
-- status is not one of @among, should there be any, or its epoch is not @at_epoch, should that not be NULL.
WITH dismissed AS MATERIALIZED (
    SELECT jobs.*
    FROM outbox.jobs
    WHERE jobs.id = @id
      AND jobs.status IN ('failed', 'dead')
      AND (coalesce(cardinality(@among::text[]), 0) = 0 OR jobs.status::text = ANY (@among::text[]))
      AND jobs.epoch = coalesce(sqlc.narg(at_epoch)::bigint, jobs.epoch)
    FOR UPDATE
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.dismiss', tenant_id, id, queue,
        jsonb_build_object('status', status, 'attempt', attempt, 'lost_leases', lost_leases, 'error_code', last_error_code),
        jsonb_build_object('status', 'dismissed')
    FROM dismissed
), freed AS ( -- their keys move on when this commits: move_freed_key_on.sql
    INSERT INTO outbox.freed_keys (tenant_id, queue, key)
    SELECT DISTINCT tenant_id, queue, key
    FROM dismissed
    WHERE key IS NOT NULL
)
SELECT outbox.close_jobs(array_agg(id), array_agg(epoch), array_agg('dismissed'::outbox.job_status))::uuid AS id
FROM dismissed
HAVING count(*) > 0;

-- name: ListLongestRunning :many
-- ListLongestRunning returns the jobs of a queue that have run longest, of a @tenant or of any. It reads all that runs,
-- which is as much as workers have room for, except jobs whose leases lapsed more than ten minutes ago, if they do not
-- fill a limited queue (see ExplainWaits).
WITH longest AS MATERIALIZED (
    SELECT found.id
    FROM (
        SELECT jobs.id, jobs.started_at, jobs.queue, jobs.tenant_id
        FROM outbox.jobs
        WHERE jobs.status = 'running'
          AND jobs.lease_expires_at > statement_timestamp() - interval '10 minutes'
        UNION ALL
        (SELECT jobs.id, jobs.started_at, jobs.queue, jobs.tenant_id
         FROM outbox.lease_extensions AS beside
         JOIN outbox.jobs ON jobs.id = ANY (ARRAY[beside.job_id]) AND jobs.epoch = beside.epoch
         WHERE jobs.status::text = 'running'
           AND jobs.lease_expires_at <= statement_timestamp() - interval '10 minutes'
         UNION
         SELECT jobs.id, jobs.started_at, jobs.queue, jobs.tenant_id
         FROM outbox.queue_usage
         JOIN outbox.jobs ON jobs.id = ANY (queue_usage.running)
         WHERE queue_usage.queue = @queue::text
           AND jobs.status::text = 'running'
           AND jobs.lease_expires_at <= statement_timestamp() - interval '10 minutes')
    ) AS found
    WHERE found.queue = @queue::text
      AND (sqlc.narg('tenant')::uuid IS NULL OR found.tenant_id = sqlc.narg('tenant')::uuid)
    ORDER BY found.started_at, found.id
    LIMIT @max_rows
)
SELECT {{open "jobs"}}
FROM longest
JOIN outbox.jobs ON jobs.id = ANY (ARRAY[longest.id])
ORDER BY jobs.started_at, jobs.id
LIMIT @max_rows;
