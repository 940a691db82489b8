-- name: ListSchedules :many
-- ListSchedules returns up to @max_rows schedules in the order of their names.
SELECT tenant_id, name, generation, coalesce(expression, '')::text AS expression, coalesce(time_zone, '')::text AS time_zone, every,
       missed, missed_limit, kind, queue, next_at, last_at, paused_at, created_at, updated_at
FROM outbox.schedules
ORDER BY name, tenant_id
LIMIT @max_rows;

-- name: PauseSchedule :many
-- PauseSchedule stops ticks. It waits for a firing that is under way.
UPDATE outbox.schedules
SET paused_at = coalesce(paused_at, statement_timestamp())
WHERE tenant_id = @tenant_id
  AND name = @name
RETURNING name;

-- name: ResumeSchedule :many
-- ResumeSchedule lets ticks go on from now: those of the pause were not missed.
UPDATE outbox.schedules
SET since     = CASE WHEN paused_at IS NULL THEN since ELSE statement_timestamp() END,
    paused_at = NULL
WHERE tenant_id = @tenant_id
  AND name = @name
RETURNING name;

-- name: DeleteSchedule :many
-- DeleteSchedule forgets a schedule; jobs that it has enqueued stay.
DELETE FROM outbox.schedules
WHERE tenant_id = @tenant_id
  AND name = @name
RETURNING name;

-- name: FindSchedule :many
-- FindSchedule returns what a schedule enqueues, and the database's time.
SELECT kind, queue, priority, max_attempts, timeout, key, deadline, hold, max_active, ordered, on_death, park_after, on_lapse,
       payload, content_type, headers, statement_timestamp()::timestamptz AS now
FROM outbox.schedules
WHERE tenant_id = @tenant_id
  AND name = @name
LIMIT 1;
