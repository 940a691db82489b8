-- name: ListChildren :many
-- ListChildren returns up to @max_rows jobs, open and closed, that were stored when another job ended, of a @tenant or
-- of any, newest first, starting with the one before @before.
(
    SELECT {{open "jobs"}}
    FROM outbox.jobs
    WHERE jobs.parent_id = @parent_id
      AND jobs.parent_id IS NOT NULL
      AND jobs.id < @before
      AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
    ORDER BY jobs.id DESC
    LIMIT @max_rows
)
UNION ALL
(
    SELECT {{shut "history"}}
    FROM outbox.history
    WHERE history.parent_id = @parent_id
      AND history.parent_id IS NOT NULL
      AND history.id < @before
      AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
    ORDER BY history.id DESC
    LIMIT @max_rows
)
ORDER BY id DESC
LIMIT @max_rows;

-- name: FindByIdempotencyKey :many
-- FindByIdempotencyKey returns the job that an idempotency key stored, for as long as the job is kept.
SELECT idempotency_keys.job_id
FROM outbox.idempotency_keys
WHERE idempotency_keys.tenant_id = @tenant_id
  AND idempotency_keys.kind = @kind
  AND idempotency_keys.key = @key
LIMIT 1;
