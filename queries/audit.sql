-- name: InsertAudit :exec
-- InsertAudit records an act in the transaction that acts. A statement that acts
-- by itself records it in a CTE of its own instead, as RetryJob does. Empty texts
-- and NULLs are what does not apply.
INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, target, before, after)
VALUES (@actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), @act, sqlc.narg(tenant_id)::uuid, sqlc.narg(job_id)::uuid,
    nullif(@queue::text, ''), nullif(@target::text, ''), sqlc.narg(before)::jsonb, sqlc.narg(after)::jsonb);

-- name: ListAudit :many
-- ListAudit returns up to @max_rows acts with an id below @before_id, newest first.
SELECT id, at, actor, act, tenant_id, job_id, coalesce(queue, '')::text AS queue, coalesce(target, '')::text AS target,
       before, after, coalesce(reason, '')::text AS reason, coalesce(request_id, '')::text AS request_id
FROM outbox.audit
WHERE audit.id < @before_id
  AND audit.at >= @since
  AND audit.at < @until
  AND (@actor::text = '' OR audit.actor = @actor)
  AND (@act::text = '' OR audit.act = @act)
  AND (@queue::text = '' OR audit.queue = @queue)
  AND (@target::text = '' OR audit.target = @target)
  AND (@request_id::text = '' OR audit.request_id = @request_id)
  AND (sqlc.narg(job_id)::uuid IS NULL OR audit.job_id = sqlc.narg(job_id))
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id))
ORDER BY audit.id DESC
LIMIT @max_rows;

-- name: TrimAudit :one
-- TrimAudit deletes the oldest acts, up to @max_rows of them, that are older than
-- @keep. Ids rise with the time but for acts at the same moment.
WITH old AS MATERIALIZED (
    SELECT audit.id, audit.at
    FROM outbox.audit
    ORDER BY audit.id
    LIMIT @max_rows
), trimmed AS (
    DELETE FROM outbox.audit
    USING old
    WHERE audit.id = old.id
      AND old.at < now() - @keep::interval
    RETURNING 1
)
SELECT count(*) FROM trimmed;

-- name: LockJob :many
-- LockJob locks an open job for an act on it, and returns how it is.
SELECT status::text AS status, tenant_id, queue
FROM outbox.jobs
WHERE id = @id
FOR UPDATE;
