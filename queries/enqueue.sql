-- name: EnqueueJob :exec
-- EnqueueJob stores one job and, if asked, wakes the dispatchers when the caller's transaction commits: one statement,
-- one round trip. Headers are sent as text: pgx sends bytes as bytea in the modes that do not ask the server for types.
INSERT INTO outbox.jobs ({{stored}})
VALUES ({{given}})
RETURNING CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END;

-- name: EnqueueJobOnce :many
-- EnqueueJobOnce stores the job unless its idempotency key was used before, and returns its id only if it stored it. It
-- waits for a concurrent producer of the same key: the key's row decides, and is visible to the statement that follows.
-- pg_notify returns void; IS NULL makes it a column that sqlc can type, here and in other statements.
WITH first AS (
    INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id, held)
    VALUES (@tenant_id, @kind, @idempotency_key, @id, nullif(@hold::boolean, false))
    ON CONFLICT DO NOTHING
    RETURNING job_id
), stored AS (
    INSERT INTO outbox.jobs ({{stored}})
    SELECT {{given}}
    FROM first
    RETURNING id
)
SELECT id, ((CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM stored
LIMIT 1;

-- name: FindIdempotencyKey :many
-- FindIdempotencyKey returns the job that used the key first.
SELECT job_id
FROM outbox.idempotency_keys
WHERE tenant_id = @tenant_id
  AND kind = @kind
  AND key = @idempotency_key
LIMIT 1;

-- name: EnqueueJobs :exec
-- EnqueueJobs stores many jobs at once and, if asked, wakes the dispatchers when the transaction commits: one
-- statement, one round trip. A column that all jobs leave to its default is NULL instead of a list, and costs next to
-- nothing.
WITH stored AS (
    INSERT INTO outbox.jobs ({{stored}})
    SELECT {{values}}
    FROM (
        SELECT unnest(@ids::uuid[])                AS id,
               {{arrays}}
    ) AS input
)
SELECT CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END;

-- name: EnqueueJobsOnce :exec
-- EnqueueJobsOnce is EnqueueJobs for jobs of which some have an idempotency key. It omits jobs whose key was used
-- before, here or earlier in the same call. It takes keys in the order of their bytes, in which the caller orders its
-- statements, too, so that two calls with the same keys wait for each other instead of deadlocking.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])                AS id,
           {{arrays}},
           nullif(unnest(@idempotency_keys::text[]), '') AS idempotency_key
), first AS (
    INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id, held)
    SELECT coalesce(tenant_id, {{root}}), kind, idempotency_key, id, nullif(hold, false)
    FROM input
    WHERE idempotency_key IS NOT NULL
    ORDER BY tenant_id, kind COLLATE "C", idempotency_key COLLATE "C", id
    ON CONFLICT DO NOTHING
    RETURNING job_id
), stored AS (
    INSERT INTO outbox.jobs ({{stored}})
    SELECT {{values}}
    FROM input
    WHERE idempotency_key IS NULL
       OR id IN (SELECT job_id FROM first)
)
SELECT CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END;

-- name: FindIdempotencyKeys :many
-- FindIdempotencyKeys returns, for each of the keys, the job that used it first.
SELECT k.kind, k.key, k.tenant_id, k.job_id
FROM outbox.idempotency_keys AS k
JOIN (SELECT unnest(@tenant_ids::uuid[])       AS tenant_id,
             unnest(@kinds::text[])            AS kind,
             unnest(@idempotency_keys::text[]) AS key) AS input
  ON k.tenant_id = input.tenant_id AND k.kind = input.kind AND k.key = input.key
LIMIT sqlc.arg('max_keys');

-- name: Notify :exec
-- Notify wakes the listeners of the channels without waiting for the disk: a wake-up is a hint, and a lost one costs a
-- poll interval.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(unnest(@channels::text[]), '');

-- name: FindHeld :many
-- FindHeld returns which of the jobs with an idempotency key were stored held, whatever has become of them.
SELECT job_id
FROM outbox.idempotency_keys
WHERE job_id = ANY (@ids::uuid[])
  AND held
LIMIT 1000;
