-- name: PauseQueue :exec
-- PauseQueue stops claims of the queue from the next one on.
WITH paused AS (
    INSERT INTO outbox.queues (queue, paused_at)
    VALUES (@queue, statement_timestamp())
    ON CONFLICT (queue) DO UPDATE
    SET paused_at  = excluded.paused_at,
        updated_at = now()
    WHERE queues.paused_at IS NULL
    RETURNING queues.queue, queues.paused_at
)
INSERT INTO outbox.audit (actor, request_id, reason, act, queue, before, after)
SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'queue.pause', paused.queue,
    '{"paused_at": null}', jsonb_build_object('paused_at', paused.paused_at)
FROM paused;

-- name: ResumeQueue :exec
-- ResumeQueue lets claims of the queue go on and wakes the dispatchers.
WITH found AS MATERIALIZED (
    SELECT queues.queue, queues.paused_at
    FROM outbox.queues
    WHERE queues.queue = @queue
      AND queues.paused_at IS NOT NULL
    FOR UPDATE
), resumed AS (
    UPDATE outbox.queues
    SET paused_at  = NULL,
        updated_at = now()
    FROM found
    WHERE queues.queue = found.queue
    RETURNING queues.queue
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'queue.resume', found.queue,
        jsonb_build_object('paused_at', found.paused_at), '{"paused_at": null}'
    FROM found
)
SELECT pg_notify('outbox_jobs', '')
FROM resumed;

-- name: ListQueues :many
-- ListQueues counts the open jobs of up to @max_queues queues by status, in the
-- order of their names. A paused queue without jobs has one row with no status.
-- With a @tenant, only its jobs count.
WITH depth AS MATERIALIZED (
    SELECT jobs.queue, jobs.status, count(*) AS jobs
    FROM outbox.jobs
    WHERE sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant')
    GROUP BY jobs.queue, jobs.status
), known AS MATERIALIZED (
    SELECT depth.queue FROM depth
    UNION
    SELECT queues.queue FROM outbox.queues WHERE queues.paused_at IS NOT NULL
    ORDER BY queue
    LIMIT @max_queues
)
SELECT known.queue, queues.paused_at, coalesce(depth.status::text, '')::text AS status, coalesce(depth.jobs, 0)::bigint AS jobs
FROM known
LEFT JOIN depth ON depth.queue = known.queue
LEFT JOIN outbox.queues ON queues.queue = known.queue
ORDER BY known.queue, depth.status
LIMIT 100000;
