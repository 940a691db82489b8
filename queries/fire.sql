-- name: SurveySchedules :many
-- SurveySchedules returns in how many seconds the next schedule is due, by the database's clock, or no row if none ever
-- is. It excludes schedules that are set aside.
SELECT extract(epoch FROM next_at - statement_timestamp())::double precision AS due_in_seconds
FROM outbox.schedules
WHERE paused_at IS NULL
  AND tenant_id::text || ' ' || name <> ALL (@set_aside::text[])
ORDER BY next_at
LIMIT 1;

-- name: LockDueSchedules :many
-- LockDueSchedules locks up to @max_schedules due schedules, the longest due first, and skips those that another
-- process is firing: one process fires each tick. It excludes schedules of the tenants @passed. The locks end with the
-- transaction that advances next_at.
SELECT tenant_id, name, expression, time_zone, every, missed, missed_limit, kind, queue, priority, max_attempts, timeout, backoff, key,
       deadline, hold, max_active, ordered, on_death, park_after, on_lapse, streamed, payload, content_type, headers,
       next_at, since, paused_at, set_by, statement_timestamp()::timestamptz AS now
FROM outbox.schedules
WHERE paused_at IS NULL
  AND next_at <= statement_timestamp()
  AND tenant_id::text || ' ' || name <> ALL (@set_aside::text[])
  AND tenant_id::text <> ALL (@passed::text[]) -- as text, for which the planner expects to exclude few rows
ORDER BY next_at, tenant_id, name
LIMIT @max_schedules
FOR UPDATE SKIP LOCKED;

-- name: AdvanceSchedules :exec
-- AdvanceSchedules moves schedules that the transaction has locked to their next ticks.
UPDATE outbox.schedules
SET next_at = fired.next_at,
    last_at = coalesce(fired.last_at, schedules.last_at)
FROM (SELECT unnest(@tenant_ids::uuid[])       AS tenant_id,
             unnest(@names::text[])            AS name,
             unnest(@next_ats::timestamptz[])  AS next_at,
             unnest(@last_ats::timestamptz[])  AS last_at) AS fired
WHERE schedules.tenant_id = fired.tenant_id
  AND schedules.name = fired.name;
