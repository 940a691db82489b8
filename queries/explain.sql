-- name: ExplainJob :many
-- ExplainJob returns what there is of a job to say why it does not run. Of a closed job, finished_at and what
-- closed it. With a @tenant, only its own.
SELECT jobs.id, jobs.tenant_id, jobs.queue, jobs.kind, jobs.status::text AS status, jobs.priority, jobs.run_at, jobs.epoch, jobs.attempt, jobs.max_attempts,
       coalesce(jobs.key, '')::text AS key, coalesce(jobs.max_active, 1)::smallint AS max_active, coalesce(jobs.ordered, false)::boolean AS ordered,
       coalesce(jobs.line_position, 0)::bigint AS line_position, coalesce(jobs.lease_owner, '')::text AS worker,
       jobs.lease_expires_at, jobs.started_at, coalesce(jobs.last_error_code, '')::text AS error_code,
       coalesce(jobs.last_error_message, '')::text AS error_message, jobs.deadline, jobs.cancel_requested_at, jobs.unavailable_since,
       jobs.failed_at, NULL::timestamptz AS finished_at, statement_timestamp()::timestamptz AS now
FROM outbox.jobs
WHERE jobs.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
UNION ALL
SELECT history.id, history.tenant_id, history.queue, history.kind, history.status::text, history.priority, history.run_at, history.epoch, history.attempt, history.max_attempts,
       coalesce(history.key, '')::text, 1, false, 0, coalesce(history.worker, '')::text,
       NULL, history.started_at, coalesce(history.last_error_code, '')::text,
       coalesce(history.last_error_message, '')::text, history.deadline, history.cancel_requested_at, NULL,
       NULL, history.finished_at, statement_timestamp()
FROM outbox.history
WHERE history.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
LIMIT 1;

-- name: ExplainQueue :one
-- ExplainQueue returns what is set for a queue, the name of the one that paused it, and what runs of it,
-- @everything only: what runs is all tenants'. It looks at the running jobs of all queues, 20 000 at most, and for
-- the pause among the newest 10 000 acts.
SELECT rules.paused_at, coalesce(rules.max_running, 0)::integer AS max_running, coalesce(rules.rate, 0)::integer AS rate,
       coalesce(extract(epoch FROM rules.rate_interval), 0)::double precision AS rate_seconds,
       coalesce(usage.start_times, '{}')::timestamptz[] AS start_times, coalesce(usage.start_counts, '{}')::integer[] AS start_counts,
       coalesce(paused.actor, '')::text AS paused_by, coalesce(paused.reason, '')::text AS paused_because,
       coalesce(busy.running, 0)::bigint AS running, busy.longest_id::uuid AS longest_id, busy.longest_since::timestamptz AS longest_since
FROM (SELECT) AS one
LEFT JOIN outbox.queues AS rules ON rules.queue = @queue
LEFT JOIN outbox.queue_usage AS usage ON usage.queue = @queue AND @everything::boolean AND rules.rate IS NOT NULL
LEFT JOIN LATERAL (
    SELECT audit.actor, audit.reason
    FROM outbox.audit
    WHERE rules.paused_at IS NOT NULL
      AND audit.queue = @queue::text
      AND audit.job_id IS NULL
      AND audit.act = 'queue.pause'
    ORDER BY audit.id DESC
    LIMIT 1
) AS paused ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS running, min(found.started_at) AS longest_since,
           (array_agg(found.id ORDER BY found.started_at, found.id))[1] AS longest_id
    FROM (
        SELECT jobs.id, jobs.queue, jobs.started_at
        FROM outbox.jobs
        WHERE @everything
          AND jobs.status = 'running'
        ORDER BY jobs.lease_expires_at
        LIMIT 20000
    ) AS found
    WHERE found.queue = @queue::text
) AS busy ON true
LIMIT 1;

-- name: ExplainWorkers :many
-- ExplainWorkers returns the dispatchers that work a queue or have a handler for a kind, those seen last first.
SELECT workers.worker, workers.version, workers.seen_at, (workers.seen_at <= statement_timestamp() - @fresh::interval)::boolean AS missing,
       (@queue::text = ANY (workers.queues))::boolean AS works_queue, (@kind::text = ANY (workers.kinds))::boolean AS handles_kind,
       coalesce(workers.concurrency[array_position(workers.queues, @queue::text)], 0)::integer AS concurrency
FROM outbox.workers
WHERE @queue::text = ANY (workers.queues) OR @kind::text = ANY (workers.kinds)
ORDER BY workers.seen_at DESC, workers.worker
LIMIT 1000;

-- name: ExplainWorker :many
-- ExplainWorker tells when a dispatcher was seen last.
SELECT workers.seen_at, (workers.seen_at <= statement_timestamp() - @fresh::interval)::boolean AS missing
FROM outbox.workers
WHERE workers.worker = @worker
LIMIT 1;

-- name: ExplainOutage :one
-- ExplainOutage looks among the next 2 000 jobs of a tenant's queue at a priority that are to become due for those
-- of a kind that found what they need away when they were tried last. The job itself may be one of them.
WITH plain AS (
    SELECT jobs.kind, jobs.run_at, jobs.unavailable_since, jobs.last_error_code, jobs.last_error_message
    FROM outbox.jobs
    WHERE jobs.queue = @queue
      AND jobs.tenant_id = @tenant_id
      AND jobs.priority = @priority::smallint
      AND jobs.key IS NULL
      AND jobs.status IN ('pending', 'retrying')
      AND jobs.run_at > statement_timestamp()
    ORDER BY jobs.run_at, jobs.id
    LIMIT 1000
), keyed AS (
    SELECT jobs.kind, jobs.run_at, jobs.unavailable_since, jobs.last_error_code, jobs.last_error_message
    FROM outbox.jobs
    WHERE jobs.queue = @queue
      AND jobs.tenant_id = @tenant_id
      AND jobs.priority = @priority::smallint
      AND jobs.key IS NOT NULL
      AND jobs.status IN ('pending', 'retrying')
      AND jobs.run_at > statement_timestamp()
    ORDER BY jobs.run_at, jobs.id
    LIMIT 1000
), found AS (
    SELECT * FROM plain
    UNION ALL
    SELECT * FROM keyed
)
SELECT count(*) AS jobs, min(found.unavailable_since)::timestamptz AS since, min(found.run_at)::timestamptz AS next_try,
       coalesce((array_agg(found.last_error_code ORDER BY found.run_at DESC))[1], '')::text AS error_code,
       coalesce((array_agg(found.last_error_message ORDER BY found.run_at DESC))[1], '')::text AS error_message
FROM found
WHERE found.kind = @kind::text
  AND found.unavailable_since IS NOT NULL
LIMIT 1;

-- name: ExplainKey :one
-- ExplainKey returns how the key of a job stands: whether it is parked, what of it runs, the head of its line, and
-- how many jobs of it come before the job, up to 10 000.
SELECT keys.parked_at, keys.park_at, keys.parked_for,
       slots.running, slots.longest_id::uuid AS longest_id, slots.longest_since::timestamptz AS longest_since, coalesce(slots.longest_worker, '')::text AS longest_worker,
       head.id AS head_id, coalesce(head.status::text, '')::text AS head_status, head.run_at AS head_run_at, coalesce(head.on_death, '')::text AS head_on_death,
       (line.ahead + blocked.ahead)::bigint AS ahead
FROM (SELECT) AS one
LEFT JOIN outbox.keys ON keys.tenant_id = @tenant_id AND keys.queue = @queue AND keys.key = @key
CROSS JOIN LATERAL (
    SELECT count(*) AS running, min(jobs.started_at) AS longest_since,
           (array_agg(jobs.id ORDER BY jobs.started_at, jobs.id))[1] AS longest_id,
           (array_agg(jobs.lease_owner ORDER BY jobs.started_at, jobs.id))[1] AS longest_worker
    FROM outbox.jobs
    WHERE jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key
      AND jobs.key IS NOT NULL AND jobs.status = 'running'
) AS slots
LEFT JOIN LATERAL (
    SELECT jobs.id, jobs.status, jobs.run_at, jobs.on_death
    FROM outbox.jobs
    WHERE @ordered::boolean
      AND jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key
      AND jobs.ordered AND jobs.status <> 'created'
      AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
    ORDER BY jobs.line_position, jobs.id
    LIMIT 1
) AS head ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS ahead
    FROM (
        SELECT
        FROM outbox.jobs
        WHERE @ordered
          AND jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key
          AND jobs.ordered AND jobs.status <> 'created'
          AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
          AND (jobs.line_position, jobs.id) < (@line_position::bigint, @id::uuid)
        LIMIT 10000
    ) AS before
) AS line
CROSS JOIN LATERAL (
    SELECT count(*) AS ahead
    FROM (
        SELECT jobs.priority, jobs.run_at, jobs.id
        FROM outbox.jobs
        WHERE NOT @ordered
          AND jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key
          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
          AND jobs.status = 'blocked'
        ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
        LIMIT 10000
    ) AS before
    WHERE (-before.priority, before.run_at, before.id) < (0 - @priority::integer, @run_at::timestamptz, @id::uuid)
) AS blocked
LIMIT 1;

-- name: ExplainTurn :one
-- ExplainTurn counts the due jobs that come before one in its tenant's queue at its priority, up to 10 000: in the
-- index of those with a key if it is @keyed, else in that of the others.
SELECT (plain.jobs + keyed.jobs)::bigint AS ahead
FROM (
    SELECT count(*) AS jobs
    FROM (
        SELECT
        FROM outbox.jobs
        WHERE NOT @keyed::boolean
          AND jobs.queue = @queue
          AND jobs.tenant_id = @tenant_id
          AND jobs.priority = @priority::smallint
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
          AND (jobs.run_at, jobs.id) < (@run_at::timestamptz, @id::uuid)
        LIMIT 10000
    ) AS before
) AS plain
CROSS JOIN (
    SELECT count(*) AS jobs
    FROM (
        SELECT
        FROM outbox.jobs
        WHERE @keyed
          AND jobs.queue = @queue
          AND jobs.tenant_id = @tenant_id
          AND jobs.priority = @priority
          AND jobs.key IS NOT NULL
          AND jobs.status IN ('pending', 'retrying')
          AND (jobs.run_at, jobs.id) < (@run_at, @id)
        LIMIT 10000
    ) AS before
) AS keyed
LIMIT 1;
