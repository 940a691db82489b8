-- name: SettleSucceededThen :many
-- SettleSucceededThen is SettleSucceeded for jobs with follow-ups. It stores those
-- of the jobs that it moves, and no others: a follow-up exists exactly when the
-- settlement of its parent does.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@results::bytea[]) AS result
), follow AS MATERIALIZED (
    SELECT unnest(@parent_ids::uuid[])            AS parent_id,
           unnest(@follow_ids::uuid[])            AS id,
           unnest(@tenant_ids::uuid[])            AS tenant_id,
           unnest(@queues::text[])                AS queue,
           unnest(@kinds::text[])                 AS kind,
           unnest(@priorities::smallint[])        AS priority,
           unnest(@max_attempts::integer[])       AS max_attempts,
           unnest(@run_ats::timestamptz[])        AS run_at,
           unnest(@delays::interval[])            AS delay,
           unnest(@timeouts::interval[])          AS timeout,
           nullif(unnest(@backoffs::text[]), '')::interval[] AS backoff,
           nullif(unnest(@keys::text[]), '')      AS key,
           unnest(@payloads::bytea[])             AS payload,
           unnest(@content_types::text[])         AS content_type,
           nullif(unnest(@headers::text[]), '')::jsonb AS headers,
           unnest(@deadlines::timestamptz[])      AS deadline,
           unnest(@holds::boolean[])              AS hold,
           nullif(unnest(@watched::boolean[]), false)  AS watched,
           nullif(unnest(@max_actives::smallint[]), 0)  AS max_active,
           nullif(unnest(@ordereds::boolean[]), false)  AS ordered,
           nullif(unnest(@positions::bigint[]), 0)      AS line_position,
           nullif(unnest(@on_deaths::text[]), '')       AS on_death,
           unnest(@park_afters::interval[])             AS park_after,
           nullif(unnest(@on_lapses::text[]), '')       AS on_lapse
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND jobs.epoch = input.epoch
      -- What has expired can no longer succeed, see SettleSucceeded.
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
    RETURNING jobs.*, (input).result AS result
), closed AS (
    INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt,
        max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, worker, result,
        last_error_code, last_error_message, deadline, cancel_requested_at, parent_id)
    SELECT id, tenant_id, run_at, created_at, started_at, epoch, 'succeeded', status, attempt,
        max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, lease_owner, result,
        last_error_code, last_error_message, deadline, cancel_requested_at, parent_id
    FROM done
    RETURNING id
), added AS (
    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, max_attempts, run_at, timeout, backoff, key, payload, content_type, headers, deadline, status, watched, parent_id,
        max_active, ordered, line_position, on_death, park_after, on_lapse)
    SELECT id, tenant_id, queue, kind, priority, max_attempts,
           coalesce(run_at, statement_timestamp() + delay, statement_timestamp()),
           timeout, backoff, key, payload, content_type, headers, deadline,
           CASE WHEN hold THEN 'created' ELSE 'pending' END::outbox.job_status, watched, parent_id,
           max_active, ordered, line_position, on_death, park_after, on_lapse
    FROM follow
    -- Hashed: within CASE it is not made a join, which in our sessions would
    -- compare each follow-up with each job.
    WHERE CASE WHEN parent_id IN (SELECT closed.id FROM closed) THEN true END
)
SELECT id, ((CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM closed
LIMIT 100000;

-- name: RegisterDeathHooks :exec
-- RegisterDeathHooks has jobs of the given kinds that die leave a job for their
-- hook behind, from now on.
INSERT INTO outbox.death_hooks (kind, hook_kind, registered_by)
SELECT kind, hook_kind, @worker::text
FROM (SELECT unnest(@kinds::text[]) AS kind, unnest(@hook_kinds::text[]) AS hook_kind) AS hooks
ORDER BY kind -- so that two that start together do not deadlock
ON CONFLICT (kind) DO UPDATE
SET hook_kind = excluded.hook_kind, registered_by = excluded.registered_by, registered_at = excluded.registered_at
WHERE death_hooks.hook_kind <> excluded.hook_kind;
