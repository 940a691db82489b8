-- name: LockSchedules :many
-- LockSchedules locks those of the named schedules that exist, so that none of them fires until the transaction ends,
-- and returns what is needed to fire them.
SELECT tenant_id, name, expression, time_zone, every, missed, missed_limit, kind, queue, priority, max_attempts, timeout, backoff, key,
       deadline, hold, max_active, ordered, on_death, park_after, on_lapse, streamed, payload, content_type, headers,
       next_at, since, paused_at, set_by, statement_timestamp()::timestamptz AS now
FROM outbox.schedules
WHERE (tenant_id, name) IN (SELECT unnest(@tenant_ids::uuid[]), unnest(@names::text[]))
ORDER BY tenant_id, name
LIMIT 10000
FOR UPDATE;

-- name: ReadClock :one
-- ReadClock returns the database's time, which is later than that of a statement that had to wait for locks.
SELECT statement_timestamp()::timestamptz AS now;

-- name: DeclareSchedule :many
-- DeclareSchedule stores a schedule, or changes the one of that name to the declaration. A schedule that is declared as
-- it is stored stays unchanged, and nothing is returned. Only another timing moves next_at. Without @set_by a program
-- declares the schedule, which belongs to the program from then on. With @only_new an existing schedule stays
-- unchanged.
INSERT INTO outbox.schedules AS stored (tenant_id, name, expression, time_zone, every, missed, missed_limit, kind, queue, priority,
    max_attempts, timeout, backoff, key, deadline, hold, max_active, ordered, on_death, park_after, on_lapse, streamed,
    payload, content_type, headers, since, next_at, set_by)
VALUES (@tenant_id, @name, sqlc.narg('expression'), sqlc.narg('time_zone'), sqlc.narg('every'), @missed, @missed_limit, @kind, @queue, @priority,
    @max_attempts, sqlc.narg('timeout'), sqlc.narg('backoff')::interval[], sqlc.narg('key'), sqlc.narg('deadline'),
    sqlc.narg('hold'), sqlc.narg('max_active'), sqlc.narg('ordered'), sqlc.narg('on_death'), sqlc.narg('park_after'),
    sqlc.narg('on_lapse'), sqlc.narg('streamed'), @payload, @content_type, sqlc.narg('headers')::text::jsonb, @since,
    @next_at, sqlc.narg('set_by'))
ON CONFLICT (tenant_id, name) DO UPDATE
SET expression   = excluded.expression,
    time_zone    = excluded.time_zone,
    every        = excluded.every,
    missed       = excluded.missed,
    missed_limit = excluded.missed_limit,
    kind         = excluded.kind,
    queue        = excluded.queue,
    priority     = excluded.priority,
    max_attempts = excluded.max_attempts,
    timeout      = excluded.timeout,
    backoff      = excluded.backoff,
    key          = excluded.key,
    deadline     = excluded.deadline,
    hold         = excluded.hold,
    max_active   = excluded.max_active,
    ordered      = excluded.ordered,
    on_death     = excluded.on_death,
    park_after   = excluded.park_after,
    on_lapse     = excluded.on_lapse,
    streamed     = excluded.streamed,
    payload      = excluded.payload,
    content_type = excluded.content_type,
    headers      = excluded.headers,
    next_at      = CASE WHEN (stored.expression, stored.time_zone, stored.every)
                             IS DISTINCT FROM (excluded.expression, excluded.time_zone, excluded.every)
                        THEN excluded.next_at ELSE stored.next_at END,
    since        = CASE WHEN (stored.expression, stored.time_zone, stored.every)
                             IS DISTINCT FROM (excluded.expression, excluded.time_zone, excluded.every)
                        THEN excluded.since ELSE stored.since END,
    set_by       = excluded.set_by,
    generation   = stored.generation + 1,
    updated_at   = excluded.updated_at
WHERE NOT @only_new::boolean
  AND (stored.expression, stored.time_zone, stored.every, stored.missed, stored.missed_limit, stored.kind, stored.queue, stored.priority,
       stored.max_attempts, stored.timeout, stored.backoff, stored.key, stored.deadline, stored.hold, stored.max_active,
       stored.ordered, stored.on_death, stored.park_after, stored.on_lapse, stored.streamed, stored.payload,
       stored.content_type, stored.headers, stored.set_by IS NULL)
      IS DISTINCT FROM
      (excluded.expression, excluded.time_zone, excluded.every, excluded.missed, excluded.missed_limit, excluded.kind,
       excluded.queue, excluded.priority, excluded.max_attempts, excluded.timeout, excluded.backoff, excluded.key,
       excluded.deadline, excluded.hold, excluded.max_active, excluded.ordered, excluded.on_death, excluded.park_after,
       excluded.on_lapse, excluded.streamed, excluded.payload, excluded.content_type, excluded.headers,
       excluded.set_by IS NULL)
RETURNING generation, next_at;
