-- name: ExplainJob :many
-- ExplainJob returns what explains why a job does not run; for a closed job, finished_at and what closed it. With a
-- @tenant, it returns only jobs of that tenant.
SELECT jobs.id, jobs.tenant_id, jobs.queue, jobs.kind, jobs.status::text AS status, jobs.priority, jobs.run_at,
       jobs.epoch, jobs.attempt, jobs.max_attempts, coalesce(jobs.key, '')::text AS key,
       coalesce(jobs.max_active, 1)::smallint AS max_active, coalesce(jobs.ordered, false)::boolean AS ordered,
       coalesce(jobs.line_position, 0)::bigint AS line_position, coalesce(jobs.lease_owner, '')::text AS worker,
       (CASE WHEN jobs.status = 'running' THEN greatest(jobs.lease_expires_at, (
           SELECT beside.expires_at
           FROM outbox.lease_extensions AS beside -- used while a transaction of the handler holds the row
           WHERE beside.job_id = jobs.id AND beside.epoch = jobs.epoch)) END)::timestamptz AS lease_expires_at,
       jobs.started_at, coalesce(jobs.last_error_code, '')::text AS error_code,
       coalesce(jobs.last_error_message, '')::text AS error_message, jobs.deadline, jobs.cancel_requested_at, jobs.unavailable_since,
       jobs.failed_at, NULL::timestamptz AS finished_at, statement_timestamp()::timestamptz AS now
FROM outbox.jobs
WHERE jobs.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
UNION ALL
SELECT history.id, history.tenant_id, history.queue, history.kind, history.status::text, history.priority,
       history.run_at, history.epoch, history.attempt, history.max_attempts, coalesce(history.key, '')::text, 1, false,
       0, coalesce(history.worker, '')::text, NULL, history.started_at, coalesce(history.last_error_code, '')::text,
       coalesce(history.last_error_message, '')::text, history.deadline, history.cancel_requested_at, NULL,
       NULL, history.finished_at, statement_timestamp()
FROM outbox.history
WHERE history.id = @id
  AND (sqlc.narg('tenant')::uuid IS NULL OR history.tenant_id = sqlc.narg('tenant'))
LIMIT 1;

-- name: ExplainWorker :many
-- ExplainWorker returns when a dispatcher was seen last.
SELECT workers.seen_at, (workers.seen_at <= statement_timestamp() - @fresh::interval)::boolean AS missing
FROM outbox.workers
WHERE workers.worker = @worker
LIMIT 1;

-- name: ExplainWaits :one
-- ExplainWaits returns everything that a waiting job may wait for, in one look:
--
--   - the settings of its queue, who paused it, and its running jobs; only with @everything, because running jobs
--     belong to all tenants. It looks at the running jobs of all queues, 20 000 at most, and for the pause among the
--     acts on the queue. As wherever running jobs are counted, those whose leases lapsed more than ten minutes ago are
--     left out: while an old snapshot is held, the index of leases has an entry of each job that has run since, and the
--     reaper would have taken these away. A lease that is extended beside its row is in lease_extensions. A limited
--     queue is full of what is in queue_usage, also if the reaper cannot take it away, because the transaction of a
--     worker that is gone still has the row;
--   - the dispatchers that work the queue or have a handler for its kind, only with @everything, those seen last first;
--   - among the next 2 000 jobs of its tenant's queue at its priority to become due, those of its kind that found their
--     dependency unavailable when they were tried last. The job itself may be one of them;
--   - the state of its key, if it has one: whether it is parked, which of its jobs run, the head of its line, and how
--     many of its jobs come before the job, up to 10 000;
--   - if the caller asks for its @turn, how many due jobs come before it in its tenant's queue at its priority, up to
--     10 000, in the index of jobs with a key if it is @keyed, else in that of the others; and the jobs of its tenant's
--     queue that have ended in five minutes, as far as they are in the last @recent_blocks blocks of today's history.
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
      AND jobs.priority = @priority
      AND jobs.key IS NOT NULL
      AND jobs.status IN ('pending', 'retrying')
      AND jobs.run_at > statement_timestamp()
    ORDER BY jobs.run_at, jobs.id
    LIMIT 1000
), coming AS (
    SELECT * FROM plain
    UNION ALL
    SELECT * FROM keyed
)
SELECT rules.paused_at, coalesce(rules.max_running, 0)::integer AS max_running, coalesce(rules.rate, 0)::integer AS rate,
       coalesce(extract(epoch FROM rules.rate_interval), 0)::double precision AS rate_seconds,
       coalesce(usage.start_times, '{}')::timestamptz[] AS start_times, coalesce(usage.start_counts, '{}')::integer[] AS start_counts,
       coalesce(paused.actor, '')::text AS paused_by, coalesce(paused.reason, '')::text AS paused_because,
       coalesce(busy.running, 0)::bigint AS running, busy.longest_id::uuid AS longest_id, busy.longest_since::timestamptz AS longest_since,
       dispatchers.workers::json AS workers,
       away.jobs AS away, away.since::timestamptz AS away_since, away.next_try::timestamptz AS away_next_try,
       coalesce(away.error_code, '')::text AS away_error_code, coalesce(away.error_message, '')::text AS away_error_message,
       keys.parked_at, keys.park_at, keys.parked_for,
       slots.running AS key_running, slots.longest_id::uuid AS key_longest_id, slots.longest_since::timestamptz AS key_longest_since,
       coalesce(slots.longest_worker, '')::text AS key_longest_worker,
       head.id AS head_id, coalesce(head.status::text, '')::text AS head_status, head.run_at AS head_run_at,
       coalesce(head.on_death, '')::text AS head_on_death, (line.ahead + blocked.ahead)::bigint AS key_ahead,
       (turn.plain + turn.keyed)::bigint AS ahead, ended.jobs AS ended, ended.seconds::double precision AS ended_seconds
FROM (SELECT) AS one
LEFT JOIN outbox.queues AS rules ON rules.queue = @queue
LEFT JOIN outbox.queue_usage AS usage ON usage.queue = @queue AND @everything::boolean AND rules.rate IS NOT NULL
LEFT JOIN LATERAL (
    SELECT audit.actor, audit.reason
    FROM outbox.audit
    WHERE @everything
      AND rules.paused_at IS NOT NULL
      AND audit.queue = @queue::text
      AND audit.job_id IS NULL
      AND audit.act = 'queue.pause'
    ORDER BY audit.id DESC
    LIMIT 1
) AS paused ON true
CROSS JOIN LATERAL (
    SELECT count(*) AS running, min(found.started_at) AS longest_since,
           (array_agg(found.id ORDER BY found.started_at, found.id))[1] AS longest_id
    FROM (
        (SELECT jobs.id, jobs.queue, jobs.started_at
         FROM outbox.jobs
         WHERE @everything
           AND jobs.status = 'running'
           AND jobs.lease_expires_at > statement_timestamp() - interval '10 minutes'
         ORDER BY jobs.lease_expires_at
         LIMIT 20000)
        UNION ALL
        (SELECT jobs.id, jobs.queue, jobs.started_at
         FROM outbox.lease_extensions AS beside
         JOIN outbox.jobs ON jobs.id = ANY (ARRAY[beside.job_id]) AND jobs.epoch = beside.epoch
         WHERE @everything
           AND jobs.status::text = 'running'
           AND jobs.lease_expires_at <= statement_timestamp() - interval '10 minutes'
         UNION
         SELECT jobs.id, jobs.queue, jobs.started_at
         FROM outbox.queue_usage
         JOIN outbox.jobs ON jobs.id = ANY (queue_usage.running)
         WHERE @everything
           AND queue_usage.queue = @queue::text
           AND jobs.status::text = 'running'
           AND jobs.lease_expires_at <= statement_timestamp() - interval '10 minutes')
    ) AS found
    WHERE found.queue = @queue::text
) AS busy
CROSS JOIN (
    SELECT coalesce(json_agg(found), '[]') AS workers
    FROM (
        SELECT workers.worker, workers.version, workers.seen_at, workers.seen_at <= statement_timestamp() - @fresh::interval AS missing,
               @queue::text = ANY (workers.queues) AS works_queue, @kind::text = ANY (workers.kinds) AS handles_kind,
               coalesce(workers.concurrency[array_position(workers.queues, @queue::text)], 0) AS concurrency
        FROM outbox.workers
        WHERE @everything
          AND (@queue::text = ANY (workers.queues) OR @kind::text = ANY (workers.kinds))
        ORDER BY workers.seen_at DESC, workers.worker
        LIMIT 1000
    ) AS found
) AS dispatchers
CROSS JOIN (
    SELECT count(*) AS jobs, min(coming.unavailable_since) AS since, min(coming.run_at) AS next_try,
           (array_agg(coming.last_error_code ORDER BY coming.run_at DESC))[1] AS error_code,
           (array_agg(coming.last_error_message ORDER BY coming.run_at DESC))[1] AS error_message
    FROM coming
    WHERE coming.kind = @kind::text
      AND coming.unavailable_since IS NOT NULL
) AS away
LEFT JOIN outbox.keys ON @keyed::boolean AND keys.tenant_id = @tenant_id AND keys.queue = @queue AND keys.key = @key
CROSS JOIN LATERAL (
    SELECT count(*) AS running, min(jobs.started_at) AS longest_since,
           (array_agg(jobs.id ORDER BY jobs.started_at, jobs.id))[1] AS longest_id,
           (array_agg(jobs.lease_owner ORDER BY jobs.started_at, jobs.id))[1] AS longest_worker
    FROM outbox.jobs
    WHERE @keyed
      AND jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key
      AND jobs.key IS NOT NULL AND jobs.status = 'running'
) AS slots
LEFT JOIN LATERAL (
    SELECT jobs.id, jobs.status, jobs.run_at, jobs.on_death
    FROM outbox.jobs
    WHERE @keyed AND @ordered::boolean
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
        WHERE @keyed AND @ordered
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
        WHERE @keyed AND NOT @ordered
          AND jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key
          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
          AND jobs.status = 'blocked'
        ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
        LIMIT 10000
    ) AS before
    WHERE (0 - before.priority::integer, before.run_at, before.id) < (0 - @priority::integer, @run_at::timestamptz, @id::uuid)
) AS blocked
CROSS JOIN (
    SELECT (
        SELECT count(*)
        FROM (
            SELECT
            FROM outbox.jobs
            WHERE @turn::boolean AND NOT @keyed
              AND jobs.queue = @queue
              AND jobs.tenant_id = @tenant_id
              AND jobs.priority = @priority
              AND jobs.key IS NULL
              AND jobs.status IN ('pending', 'retrying')
              AND (jobs.run_at, jobs.id) < (@run_at, @id)
            LIMIT 10000
        ) AS before
    ) AS plain, (
        SELECT count(*)
        FROM (
            SELECT
            FROM outbox.jobs
            WHERE @turn AND @keyed
              AND jobs.queue = @queue
              AND jobs.tenant_id = @tenant_id
              AND jobs.priority = @priority
              AND jobs.key IS NOT NULL
              AND jobs.status IN ('pending', 'retrying')
              AND (jobs.run_at, jobs.id) < (@run_at, @id)
            LIMIT 10000
        ) AS before
    ) AS keyed
) AS turn
CROSS JOIN (
    SELECT count(*) AS jobs, coalesce(extract(epoch FROM statement_timestamp() - min(history.finished_at)), 0) AS seconds
    FROM outbox.history
    WHERE @turn
      AND history.finished_at >= date_trunc('day', statement_timestamp() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
      AND history.finished_at >= statement_timestamp() - interval '5 minutes'
      AND history.ctid >= (
          SELECT format('(%s,0)', greatest(
                     0,
                     coalesce(pg_relation_size(to_regclass(today.name)) / current_setting('block_size')::bigint, 0)
                         - @recent_blocks::bigint))::tid
          FROM (SELECT 'outbox.history_' || to_char(statement_timestamp() AT TIME ZONE 'UTC', 'YYYYMMDD') AS name) AS today)
      AND history.queue = @queue
      AND history.tenant_id = @tenant_id
) AS ended
LIMIT 1;
