-- name: PauseQueue :exec
-- PauseQueue stops claims of the queue from the next one on.
WITH paused AS (
    INSERT INTO outbox.queues (queue, paused_at)
    VALUES (@queue, statement_timestamp())
    ON CONFLICT (queue) DO UPDATE
    SET paused_at  = excluded.paused_at,
        updated_at = now()
    WHERE queues.paused_at IS NULL
    RETURNING queues.queue, queues.paused_at
)
INSERT INTO outbox.audit (actor, request_id, reason, act, queue, before, after)
SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'queue.pause', paused.queue,
    '{"paused_at": null}', jsonb_build_object('paused_at', paused.paused_at)
FROM paused;

-- name: LockQueue :exec
-- LockQueue locks the rules of a queue, if it has any, until the transaction ends.
SELECT 1 FROM outbox.queues WHERE queues.queue = @queue FOR UPDATE;

-- name: ResumeQueue :exec
-- ResumeQueue lets claims of the queue continue and wakes the dispatchers.
WITH found AS MATERIALIZED (
    SELECT queues.queue, queues.paused_at
    FROM outbox.queues
    WHERE queues.queue = @queue
      AND queues.paused_at IS NOT NULL
    FOR UPDATE
), resumed AS (
    UPDATE outbox.queues
    SET paused_at  = NULL,
        updated_at = now()
    FROM found
    WHERE queues.queue = found.queue
    RETURNING queues.queue
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'queue.resume', found.queue,
        jsonb_build_object('paused_at', found.paused_at), '{"paused_at": null}'
    FROM found
)
SELECT pg_notify('outbox_jobs', '')
FROM resumed;

-- name: LimitQueue :one
-- LimitQueue sets, lifts or keeps each limit of the queue, and wakes the dispatchers. It returns the limits that are
-- set then.
WITH found AS MATERIALIZED (
    SELECT queues.max_running, queues.rate, queues.rate_interval
    FROM outbox.queues
    WHERE queues.queue = @queue
    FOR UPDATE
), wanted AS MATERIALIZED (
    SELECT CASE WHEN @sets_max_running::boolean THEN nullif(@max_running::integer, 0) ELSE found.max_running END AS max_running,
           CASE WHEN @sets_rate::boolean THEN nullif(@rate::integer, 0) ELSE found.rate END                      AS rate,
           CASE WHEN @sets_rate THEN sqlc.narg('rate_interval')::interval ELSE found.rate_interval END           AS rate_interval
    FROM (SELECT) AS one
    LEFT JOIN found ON true
), limited AS (
    INSERT INTO outbox.queues AS q (queue, max_running, rate, rate_interval, limited_at)
    SELECT @queue, wanted.max_running, wanted.rate, wanted.rate_interval, statement_timestamp()
    FROM wanted
    WHERE EXISTS (SELECT FROM found) OR wanted.max_running IS NOT NULL OR wanted.rate IS NOT NULL
    ON CONFLICT (queue) DO UPDATE
    -- Another transaction may have set the other limit since: a row that did not exist could not be locked above.
    SET max_running   = CASE WHEN @sets_max_running THEN excluded.max_running ELSE q.max_running END,
        rate          = CASE WHEN @sets_rate THEN excluded.rate ELSE q.rate END,
        rate_interval = CASE WHEN @sets_rate THEN excluded.rate_interval ELSE q.rate_interval END,
        limited_at    = excluded.limited_at,
        updated_at    = now()
    WHERE @sets_max_running AND q.max_running IS DISTINCT FROM excluded.max_running
       OR @sets_rate AND (q.rate, q.rate_interval) IS DISTINCT FROM (excluded.rate, excluded.rate_interval)
    RETURNING q.queue, q.max_running, q.rate, q.rate_interval
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'queue.limit', limited.queue,
        jsonb_build_object('max_running', CASE WHEN @sets_max_running THEN found.max_running ELSE limited.max_running END,
            'rate', CASE WHEN @sets_rate THEN found.rate ELSE limited.rate END,
            'rate_interval', CASE WHEN @sets_rate THEN found.rate_interval ELSE limited.rate_interval END),
        jsonb_build_object('max_running', limited.max_running, 'rate', limited.rate, 'rate_interval', limited.rate_interval)
    FROM limited
    LEFT JOIN found ON true
)
SELECT coalesce(now_set.max_running, 0)::integer AS max_running, coalesce(now_set.rate, 0)::integer AS rate,
       coalesce(extract(epoch FROM now_set.rate_interval), 0)::double precision AS rate_seconds,
       ((SELECT pg_notify('outbox_jobs', '') FROM limited) IS NULL)::boolean AS silent
FROM (
    SELECT limited.max_running, limited.rate, limited.rate_interval FROM limited
    UNION ALL
    SELECT wanted.max_running, wanted.rate, wanted.rate_interval FROM wanted WHERE NOT EXISTS (SELECT FROM limited)
) AS now_set
LIMIT 1;

-- name: CountOpenJobs :many
-- CountOpenJobs counts the open jobs by queue and status, and returns when the first due one of them was due; with a
-- @tenant, only that tenant's. Without one it also counts them by tenant, unless that would return more than @max_rows
-- rows.
WITH depth AS MATERIALIZED (
    SELECT jobs.tenant_id, jobs.queue, jobs.status, count(*) AS jobs,
           CASE WHEN jobs.status IN ('pending', 'retrying') AND min(jobs.run_at) <= statement_timestamp() THEN min(jobs.run_at) END AS oldest_due
    FROM outbox.jobs
    WHERE sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant')
    GROUP BY jobs.tenant_id, jobs.queue, jobs.status
)
SELECT NULL::uuid AS tenant_id, depth.queue, depth.status::text AS status, sum(depth.jobs)::bigint AS jobs,
       min(depth.oldest_due)::timestamptz AS oldest_due
FROM depth
GROUP BY depth.queue, depth.status
UNION ALL
SELECT depth.tenant_id, depth.queue, depth.status::text, depth.jobs, depth.oldest_due
FROM depth
WHERE sqlc.narg('tenant')::uuid IS NULL
  AND (SELECT count(*) FROM depth) <= @max_rows::bigint
LIMIT 200000;

-- name: ListUnavailableKinds :many
-- ListUnavailableKinds returns up to @max_kinds kinds with jobs that found their dependency unavailable when they were
-- tried last and wait for the next time, and since when. It reads every open job. A job that has been due again for a
-- few minutes counts: the process may have probed with another one.
SELECT jobs.queue, jobs.kind, min(jobs.unavailable_since)::timestamptz AS since
FROM outbox.jobs
WHERE jobs.unavailable_since IS NOT NULL
  AND jobs.run_at > statement_timestamp() - interval '5 minutes'
GROUP BY jobs.queue, jobs.kind
ORDER BY jobs.queue, jobs.kind
LIMIT @max_kinds;

-- name: ListQueueRules :many
-- ListQueueRules returns up to @max_queues queues that are paused or limited, or only the one of that name.
SELECT queues.queue, queues.paused_at, queues.max_running, queues.rate,
       coalesce(extract(epoch FROM queues.rate_interval), 0)::double precision AS rate_seconds
FROM outbox.queues
WHERE (queues.paused_at IS NOT NULL OR queues.limited)
  AND queues.queue = coalesce(sqlc.narg(queue), queues.queue)
ORDER BY queues.queue
LIMIT @max_queues;

-- name: QueueIsKnown :one
-- QueueIsKnown reports whether a queue has rules or open jobs. It is only called for unusual names: for a queue without
-- jobs it reads all open jobs.
SELECT (EXISTS (SELECT FROM outbox.queues WHERE queues.queue = @queue)
    OR EXISTS (SELECT FROM outbox.jobs WHERE jobs.queue = @queue))::boolean AS known;
