-- name: PauseQueue :exec
-- PauseQueue stops claims of the queue from the next one on.
INSERT INTO outbox.queues (queue, paused_at)
VALUES (@queue, statement_timestamp())
ON CONFLICT (queue) DO UPDATE
SET paused_at  = coalesce(queues.paused_at, excluded.paused_at),
    updated_at = now();

-- name: ResumeQueue :exec
-- ResumeQueue lets claims of the queue go on and wakes the dispatchers.
WITH resumed AS (
    UPDATE outbox.queues
    SET paused_at  = NULL,
        updated_at = now()
    WHERE queues.queue = @queue
      AND queues.paused_at IS NOT NULL
    RETURNING queues.queue
)
SELECT pg_notify('outbox_jobs', '')
FROM resumed;

-- name: ListQueues :many
-- ListQueues counts the open jobs of up to @max_queues queues by status, in the
-- order of their names. A paused queue without jobs has one row with no status.
WITH depth AS MATERIALIZED (
    SELECT jobs.queue, jobs.status, count(*) AS jobs
    FROM outbox.jobs
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
