-- name: KeepHeld :many
-- KeepHeld stores which jobs the messages of a sink have become, by their idempotency keys, and returns those that were
-- not stored before. It omits jobs that are closed.
INSERT INTO outbox.held_messages (sink, job_id, tenant_id, key, position)
SELECT @sink, jobs.id, jobs.tenant_id, jobs.key, input.position
FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id, unnest(@event_ids::text[]) AS event_id, unnest(@positions::bigint[]) AS position) AS input
JOIN outbox.idempotency_keys AS used ON used.tenant_id = input.tenant_id AND used.kind = @kind AND used.key = input.event_id
JOIN outbox.jobs ON jobs.id = ANY (ARRAY[used.job_id])
ON CONFLICT DO NOTHING
RETURNING job_id, tenant_id, coalesce(key, '')::text AS key;

-- name: LookAtHeld :many
-- LookAtHeld returns the messages of a sink that are jobs: whether the job is over, whether it keeps other messages of
-- its key from being published, and whether it should still run, which a dead letter should not, nor a job that is
-- blocked until an operator handles a dead letter or unblocks the key. It deletes the rows of jobs that are over. A key
-- that an operator must unblock stays blocked even without a job.
WITH found AS MATERIALIZED (
    SELECT held.job_id, held.tenant_id, held.key, jobs.id IS NULL AND parked.key IS NULL AS is_over,
           held.key IS NOT NULL
           AND (parked.key IS NOT NULL OR jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip') AS blocks,
           jobs.status NOT IN ('failed', 'dead')
           AND (jobs.status <> 'blocked'
                OR parked.key IS NULL
                   AND NOT bool_or(jobs.status IN ('failed', 'dead') AND jobs.on_death IS DISTINCT FROM 'skip')
                           OVER (PARTITION BY held.tenant_id, held.key ORDER BY jobs.line_position, jobs.id)) AS is_open
    FROM outbox.held_messages AS held
    LEFT JOIN outbox.jobs ON jobs.id = ANY (ARRAY[held.job_id])
    LEFT JOIN outbox.keys AS parked
      ON parked.tenant_id = held.tenant_id AND parked.queue = @queue AND parked.key = held.key AND parked.parked_at IS NOT NULL
    WHERE held.sink = @sink
), forgotten AS (
    DELETE FROM outbox.held_messages AS held
    USING found
    WHERE held.sink = @sink
      AND held.job_id = found.job_id
      AND found.is_over
)
SELECT found.job_id, found.tenant_id, coalesce(found.key, '')::text AS key, found.is_over::boolean AS is_over,
       coalesce(found.blocks, false)::boolean AS blocks, coalesce(found.is_open, false)::boolean AS is_open
FROM found;

-- name: ListHeld :many
-- ListHeld returns the jobs that messages of a sink have become, in the order of the log.
SELECT {{open "jobs"}},
       held.position, coalesce(jobs.headers->>'posthaste-event', '')::text AS event
FROM outbox.held_messages AS held
JOIN outbox.jobs ON jobs.id = ANY (ARRAY[held.job_id])
WHERE held.sink = @sink
  AND (held.position, held.job_id) > (@after_position::bigint, @after_job_id::uuid)
ORDER BY held.position, held.job_id
LIMIT @max_rows;

-- name: IsHeld :one
-- IsHeld reports whether a job was made from a message of the sink.
SELECT EXISTS (SELECT FROM outbox.held_messages WHERE sink = @sink AND job_id = @job_id);

-- name: HeldAmong :many
-- HeldAmong returns which of the given positions belong to messages of a sink that are jobs now.
SELECT position
FROM outbox.held_messages
WHERE sink = @sink
  AND position = ANY (@positions::bigint[]);
