-- name: EnqueueJob :exec
-- EnqueueJob stores one job and, if asked, wakes the dispatchers when the
-- caller's transaction commits: one statement, one round trip. Headers go as text:
-- bytes are bytea to pgx in the modes that do not ask the server for types.
INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, max_attempts, run_at, timeout, backoff, key, payload, content_type, headers, deadline, status, watched,
        max_active, ordered, line_position, on_death, park_after, on_lapse)
VALUES (@id, @tenant_id, @queue, @kind, @priority, @max_attempts,
        coalesce(sqlc.narg('run_at')::timestamptz, statement_timestamp() + sqlc.narg('delay')::interval, statement_timestamp()),
        sqlc.narg('timeout'), sqlc.narg('backoff')::text::interval[], sqlc.narg('key'), @payload, @content_type, sqlc.narg('headers')::text::jsonb, sqlc.narg('deadline')::timestamptz,
        CASE WHEN @hold::boolean THEN 'created' ELSE 'pending' END::outbox.job_status,
        nullif(@watched::boolean, false),
        sqlc.narg('max_active'), sqlc.narg('ordered'), sqlc.narg('position'), sqlc.narg('on_death'), sqlc.narg('park_after'), sqlc.narg('on_lapse'))
RETURNING CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END;

-- name: EnqueueJobOnce :many
-- EnqueueJobOnce stores the job unless its idempotency key was used before; it
-- returns its id only if it did. A concurrent producer of the same key is waited
-- for: the key's row decides, and it is visible to the statement that follows.
WITH first AS (
    INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id, held)
    VALUES (@tenant_id, @kind, @idempotency_key, @id, nullif(@hold::boolean, false))
    ON CONFLICT DO NOTHING
    RETURNING job_id
), stored AS (
    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, max_attempts, run_at, timeout, backoff, key, payload, content_type, headers, deadline, status, watched,
            max_active, ordered, line_position, on_death, park_after, on_lapse)
    SELECT first.job_id, @tenant_id::uuid, @queue::text, @kind::text, @priority::smallint, @max_attempts::integer,
           coalesce(sqlc.narg('run_at')::timestamptz, statement_timestamp() + sqlc.narg('delay')::interval, statement_timestamp()),
           sqlc.narg('timeout')::interval, sqlc.narg('backoff')::text::interval[], sqlc.narg('job_key')::text, @payload::bytea, @content_type::text, sqlc.narg('headers')::text::jsonb, sqlc.narg('deadline')::timestamptz,
           CASE WHEN @hold::boolean THEN 'created' ELSE 'pending' END::outbox.job_status,
           nullif(@watched::boolean, false),
           sqlc.narg('max_active')::smallint, sqlc.narg('ordered')::boolean, sqlc.narg('position')::bigint,
           sqlc.narg('on_death')::text, sqlc.narg('park_after')::interval, sqlc.narg('on_lapse')::text
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
-- EnqueueJobs stores many jobs at once and, if asked, wakes the dispatchers when the
-- transaction commits: one statement, one round trip. What all jobs leave to its default
-- is NULL instead of a list, and costs next to nothing.
WITH stored AS (
    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, max_attempts, run_at, timeout, backoff, key, payload, content_type, headers, deadline, status, watched,
        max_active, ordered, line_position, on_death, park_after, on_lapse)
    SELECT id, coalesce(tenant_id, '00000000-0000-0000-0000-000000000001'), coalesce(queue, 'default'), kind, coalesce(priority, 0), coalesce(max_attempts, 25),
           coalesce(run_at, statement_timestamp() + delay, statement_timestamp()),
           timeout, nullif(backoff, '')::interval[], nullif(key, ''), payload, coalesce(content_type, 'application/json'), nullif(headers, '')::jsonb, deadline,
           CASE WHEN hold THEN 'created' ELSE 'pending' END::outbox.job_status, nullif(watched, false),
           nullif(max_active, 0), nullif(ordered, false), nullif(line_position, 0), nullif(on_death, ''), park_after, nullif(on_lapse, '')
    FROM (
        SELECT unnest(@ids::uuid[])                AS id,
               unnest(@tenant_ids::uuid[])         AS tenant_id,
               unnest(@queues::text[])             AS queue,
               unnest(@kinds::text[])              AS kind,
               unnest(@priorities::smallint[])     AS priority,
               unnest(@max_attempts::integer[])    AS max_attempts,
               unnest(@run_ats::timestamptz[])     AS run_at,
               unnest(@delays::interval[])         AS delay,
               unnest(@timeouts::interval[])       AS timeout,
               unnest(@backoffs::text[])           AS backoff,
               unnest(@keys::text[])               AS key,
               unnest(@payloads::bytea[])          AS payload,
               unnest(@content_types::text[])      AS content_type,
               unnest(@headers::text[])            AS headers,
               unnest(@deadlines::timestamptz[])   AS deadline,
               unnest(@holds::boolean[])           AS hold,
               unnest(@max_actives::smallint[])    AS max_active,
               unnest(@ordereds::boolean[])        AS ordered,
               unnest(@positions::bigint[])        AS line_position,
               unnest(@on_deaths::text[])          AS on_death,
               unnest(@park_afters::interval[])    AS park_after,
               unnest(@on_lapses::text[])          AS on_lapse,
               unnest(@watched::boolean[])         AS watched
    ) AS input
)
SELECT CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END;

-- name: EnqueueJobsOnce :exec
-- EnqueueJobsOnce is EnqueueJobs for jobs of which some have an idempotency key. Those whose
-- key was used before, here or earlier in the same call, are left out. Keys are taken in
-- the order of their bytes, as the caller orders its statements, so that two
-- calls with the same keys wait for each other instead of deadlocking.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])                AS id,
           unnest(@tenant_ids::uuid[])         AS tenant_id,
           unnest(@queues::text[])             AS queue,
           unnest(@kinds::text[])              AS kind,
           unnest(@priorities::smallint[])     AS priority,
           unnest(@max_attempts::integer[])    AS max_attempts,
           unnest(@run_ats::timestamptz[])     AS run_at,
           unnest(@delays::interval[])         AS delay,
           unnest(@timeouts::interval[])       AS timeout,
           unnest(@backoffs::text[])           AS backoff,
           unnest(@keys::text[])               AS key,
           unnest(@payloads::bytea[])          AS payload,
           unnest(@content_types::text[])      AS content_type,
           unnest(@headers::text[])            AS headers,
           unnest(@deadlines::timestamptz[])   AS deadline,
           unnest(@holds::boolean[])           AS hold,
           unnest(@max_actives::smallint[])    AS max_active,
           unnest(@ordereds::boolean[])        AS ordered,
           unnest(@positions::bigint[])        AS line_position,
           unnest(@on_deaths::text[])          AS on_death,
           unnest(@park_afters::interval[])    AS park_after,
           unnest(@on_lapses::text[])          AS on_lapse,
           unnest(@watched::boolean[])         AS watched,
           nullif(unnest(@idempotency_keys::text[]), '') AS idempotency_key
), first AS (
    INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id, held)
    SELECT coalesce(tenant_id, '00000000-0000-0000-0000-000000000001'), kind, idempotency_key, id, nullif(hold, false)
    FROM input
    WHERE idempotency_key IS NOT NULL
    ORDER BY tenant_id, kind COLLATE "C", idempotency_key COLLATE "C", id
    ON CONFLICT DO NOTHING
    RETURNING job_id
), stored AS (
    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, max_attempts, run_at, timeout, backoff, key, payload, content_type, headers, deadline, status, watched,
        max_active, ordered, line_position, on_death, park_after, on_lapse)
    SELECT id, coalesce(tenant_id, '00000000-0000-0000-0000-000000000001'), coalesce(queue, 'default'), kind, coalesce(priority, 0), coalesce(max_attempts, 25),
           coalesce(run_at, statement_timestamp() + delay, statement_timestamp()),
           timeout, nullif(backoff, '')::interval[], nullif(key, ''), payload, coalesce(content_type, 'application/json'), nullif(headers, '')::jsonb, deadline,
           CASE WHEN hold THEN 'created' ELSE 'pending' END::outbox.job_status, nullif(watched, false),
           nullif(max_active, 0), nullif(ordered, false), nullif(line_position, 0), nullif(on_death, ''), park_after, nullif(on_lapse, '')
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

-- name: WakeDispatchers :exec
-- WakeDispatchers notifies without waiting for the disk: a wake-up is a hint, and
-- a lost one costs a poll interval. (pgx prepares no statement that has no argument.)
SELECT set_config('synchronous_commit', 'off', true), pg_notify(@channel::text, '');

-- name: FindHeld :many
-- FindHeld returns those of the jobs with an idempotency key that were stored held,
-- whatever has become of them.
SELECT job_id
FROM outbox.idempotency_keys
WHERE job_id = ANY (@ids::uuid[])
  AND held
LIMIT 1000;
