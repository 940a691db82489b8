-- name: ListSchedules :many
-- ListSchedules returns up to @max_rows schedules in the order of their names and tenants, after the one that
-- @after_name and @after_tenant name; only those of the @tenant if there is one.
SELECT tenant_id, name, generation, coalesce(expression, '')::text AS expression, coalesce(time_zone, '')::text AS time_zone, every,
       missed, missed_limit, kind, queue, coalesce(streamed, false)::boolean AS streamed, next_at, last_at, paused_at, created_at, updated_at,
       coalesce(set_by, '')::text AS set_by
FROM outbox.schedules
WHERE (sqlc.narg('tenant')::uuid IS NULL OR schedules.tenant_id = sqlc.narg('tenant'))
  AND schedules.name >= @after_name::text -- for the index of a tenant's names
  AND (schedules.name, schedules.tenant_id) > (@after_name, @after_tenant::uuid)
ORDER BY name, tenant_id
LIMIT @max_rows;

-- name: OverdueSchedules :many
-- OverdueSchedules returns up to @max_rows schedules, only those of the @tenant if there is one, whose next tick was
-- due more than @patience ago, the longest overdue first.
SELECT tenant_id, name, kind, queue, next_at
FROM outbox.schedules
WHERE schedules.paused_at IS NULL
  AND schedules.next_at < statement_timestamp() - @patience::interval
  AND (sqlc.narg('tenant')::uuid IS NULL OR schedules.tenant_id = sqlc.narg('tenant'))
ORDER BY schedules.next_at
LIMIT @max_rows;

-- name: LockSchedule :exec
-- LockSchedule locks a schedule until the transaction ends. It waits for a firing that is under way.
SELECT 1 FROM outbox.schedules WHERE schedules.tenant_id = @tenant_id AND schedules.name = @name FOR UPDATE;

-- name: PauseSchedule :many
-- PauseSchedule stops ticks. It waits for a firing that is under way. It returns whether the schedule was paused
-- before; nothing if there is none.
WITH found AS MATERIALIZED (
    SELECT schedules.tenant_id, schedules.name, schedules.paused_at
    FROM outbox.schedules
    WHERE schedules.tenant_id = @tenant_id
      AND schedules.name = @name
    FOR UPDATE
)
UPDATE outbox.schedules
SET paused_at = coalesce(schedules.paused_at, statement_timestamp())
FROM found
WHERE schedules.tenant_id = found.tenant_id
  AND schedules.name = found.name
RETURNING (found.paused_at IS NOT NULL)::boolean AS was_paused;

-- name: ResumeSchedule :many
-- ResumeSchedule lets ticks continue from now: those of the pause do not count as missed. It returns whether the
-- schedule was paused before; nothing if there is none.
WITH found AS MATERIALIZED (
    SELECT schedules.tenant_id, schedules.name, schedules.paused_at
    FROM outbox.schedules
    WHERE schedules.tenant_id = @tenant_id
      AND schedules.name = @name
    FOR UPDATE
)
UPDATE outbox.schedules
SET since     = CASE WHEN schedules.paused_at IS NULL THEN schedules.since ELSE statement_timestamp() END,
    paused_at = NULL
FROM found
WHERE schedules.tenant_id = found.tenant_id
  AND schedules.name = found.name
RETURNING (found.paused_at IS NOT NULL)::boolean AS was_paused;

-- name: DeleteSchedule :many
-- DeleteSchedule deletes a schedule; jobs that it has enqueued stay.
DELETE FROM outbox.schedules
WHERE tenant_id = @tenant_id
  AND name = @name
RETURNING (paused_at IS NOT NULL)::boolean AS was_paused;

-- name: FindSchedule :many
-- FindSchedule returns what a schedule enqueues, and the database's time.
SELECT kind, queue, priority, max_attempts, timeout, backoff, key, deadline, hold, max_active, ordered, on_death, park_after, on_lapse, streamed,
       payload, content_type, headers, statement_timestamp()::timestamptz AS now
FROM outbox.schedules
WHERE tenant_id = @tenant_id
  AND name = @name
LIMIT 1;

-- name: DescribeSchedule :many
-- DescribeSchedule locks a schedule and returns it in the form of the audit.
SELECT outbox.describe_schedule(schedules) AS described
FROM outbox.schedules
WHERE tenant_id = @tenant_id
  AND name = @name
LIMIT 1
FOR UPDATE;

-- name: NotifySchedulers :exec
-- NotifySchedulers makes schedulers that receive notifications look at the table when the transaction commits.
SELECT pg_notify('outbox_jobs', 'schedules');
