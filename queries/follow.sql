-- name: SettleSucceededThen :many
-- SettleSucceededThen is SettleSucceeded for jobs with follow-ups. It stores the follow-ups of the jobs that it moves,
-- and no others: a follow-up exists exactly when its parent is settled.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@starts::timestamptz[]) AS started_at,
           unnest(@results::bytea[]) AS result
), follow AS MATERIALIZED (
    SELECT unnest(@parent_ids::uuid[])            AS parent_id,
           unnest(@follow_ids::uuid[])            AS id,
           {{arrays}}
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.id = ANY (ARRAY[input.id])
      AND jobs.epoch = input.epoch
      AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
      -- An expired job can no longer succeed, see SettleSucceeded.
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
    RETURNING jobs.*, (input).result AS result
), closed AS (
    INSERT INTO outbox.history ({{history}}, result)
    SELECT {{closed "'succeeded'"}}, result
    FROM done
    RETURNING id
), added AS (
    INSERT INTO outbox.jobs ({{stored}}, parent_id)
    SELECT {{values}}, parent_id
    FROM follow
    -- Hashed: within CASE it does not become a join, which in our sessions would compare each follow-up with each job.
    WHERE CASE WHEN parent_id IN (SELECT closed.id FROM closed) THEN true END
)
SELECT id, ((CASE WHEN @notify::boolean THEN pg_notify('outbox_jobs', '') END) IS NULL)::boolean AS silent
FROM closed
LIMIT 100000;

-- name: RegisterDeathHooks :exec
-- RegisterDeathHooks registers hooks of kinds: from now on a job of such a kind that dies leaves a job for the hook.
INSERT INTO outbox.death_hooks (kind, hook_kind, registered_by)
SELECT kind, hook_kind, @worker::text
FROM (SELECT unnest(@kinds::text[]) AS kind, unnest(@hook_kinds::text[]) AS hook_kind) AS hooks
ORDER BY kind -- so that two that start together do not deadlock
ON CONFLICT (kind) DO UPDATE
SET hook_kind = excluded.hook_kind, registered_by = excluded.registered_by, registered_at = excluded.registered_at
WHERE death_hooks.hook_kind <> excluded.hook_kind;
