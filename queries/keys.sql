-- name: ClaimKeyedJobs :exec
-- ClaimKeyedJobs is ClaimJobs for jobs with a key: it leases no more jobs of a key than the key has slots. For each
-- tenant it looks at as many candidates as its reach allows, and at the jobs @also, and blocks those that cannot run.
-- The rows have the columns of ClaimJobs, in no particular order. Rows without a job name the keys in which jobs were
-- blocked. The one without a key, too, counts the candidates that it looked at, those that it passed by because another
-- transaction had locked them or their key, and the jobs that it blocked and promoted. Only its text is used: the code
-- generator does not know the columns of a function's result.
WITH open AS MATERIALIZED (
    -- The function checks whether the queue is paused.
    SELECT @queue::text AS queue
    WHERE @within_limits::boolean
       OR NOT EXISTS (SELECT FROM outbox.queues WHERE queues.queue = @queue AND queues.limited)
)
SELECT {{claimed "(c.job)"}},
    c.halted_tenant, c.halted_key, c.looked, c.passed, c.blocked, c.promoted
FROM open
CROSS JOIN LATERAL outbox.claim_keyed(@worker::text, @lease_ttl::interval,
    @tenant_ids::uuid[], @quotas::integer[], @reaches::integer[], @firsts::integer[], @lasts::integer[],
    @priorities::smallint[], @from_run_at::timestamptz[], @from_id::uuid[],
    open.queue, @kinds::text[], @also::uuid[], @max_jobs::integer)
    AS c(job, halted_tenant, halted_key, looked, passed, blocked, promoted)
LIMIT 100000;

-- name: FindMovableKeys :many
-- FindMovableKeys returns those of the numbers @ats whose keys PromoteKeys could move on now. Of the conditions on a
-- blocked job, those on its key and its order, and that it does not run, repeat the predicate of jobs_key_idx, so that
-- the planner may use that index: keep them, here and in the statements below.
SELECT input.at::integer AS at
FROM (SELECT unnest(@ats::integer[]) AS at, unnest(@tenant_ids::uuid[]) AS tenant_id, unnest(@queues::text[]) AS queue,
             unnest(@keys::text[]) AS key) AS input
LEFT JOIN LATERAL (
    SELECT coalesce(jobs.max_active, 1) AS max_active
    FROM outbox.jobs
    WHERE jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
      AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
      AND jobs.status = 'blocked'
    ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
    LIMIT 1
) AS waiting ON true
LEFT JOIN LATERAL (
    SELECT jobs.status, jobs.on_death
    FROM outbox.jobs
    WHERE jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
      AND jobs.ordered AND jobs.status <> 'created'
      AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
    ORDER BY jobs.line_position, jobs.id
    LIMIT 1
) AS head ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS running
    FROM outbox.jobs
    WHERE (waiting.max_active IS NOT NULL OR head.status = 'blocked')
      AND jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
      AND jobs.key IS NOT NULL AND jobs.status = 'running'
) AS slots ON true
WHERE slots.running < waiting.max_active
   OR (head.status = 'blocked' AND slots.running = 0)
   OR (head.status IN ('failed', 'dead') AND head.on_death = 'park')
LIMIT 100000;

-- name: PromoteKeys :many
-- PromoteKeys moves keys on after jobs have left them: for each key it promotes up to @counts blocked jobs, as far as
-- slots are free, and returns them. A row without an id names a key of which it passed by a locked row.
SELECT p.id::uuid AS id, p.tenant_id::uuid AS tenant_id, p.queue::text AS queue, p.key::text AS key, coalesce(p.kind, '')::text AS kind
FROM outbox.promote_keys(@tenant_ids::uuid[], @queues::text[], @keys::text[], @counts::integer[], @patient::boolean)
    AS p(id, tenant_id, queue, key, kind)
LIMIT 100000;

-- name: SweepKeys :many
-- SweepKeys looks at up to @max_keys keys, starting after the given one. For each key it returns whether a job could be
-- moved on although perhaps nobody is about to do so, whether the job that is next has been due for some seconds and
-- nothing runs, and whether no open job has the key.
WITH page AS MATERIALIZED (
    SELECT keys.tenant_id, keys.queue, keys.key, keys.made_at, keys.park_at, keys.parked_at
    FROM outbox.keys
    WHERE (keys.tenant_id, keys.queue, keys.key) > (@after_tenant_id::uuid, @after_queue::text, @after_key::text)
    ORDER BY keys.tenant_id, keys.queue, keys.key
    LIMIT @max_keys
)
SELECT page.tenant_id, page.queue, page.key,
       coalesce(page.parked_at IS NULL AND (
           slots.running < waiting.max_active
           OR (head.status = 'blocked' AND slots.running = 0)
           OR (head.status IN ('failed', 'dead') AND head.on_death = 'park' AND (page.park_at IS NULL OR page.park_at <= statement_timestamp()))
           OR (page.park_at IS NOT NULL AND head.status NOT IN ('failed', 'dead'))
       ), false)::boolean AS stuck,
       coalesce(page.parked_at IS NULL AND slots.running = 0
           AND coalesce(head.status, 'pending') = 'pending'
           AND coalesce(head.run_at, ready.run_at) < statement_timestamp() - interval '2 seconds', false)::boolean AS waits,
       (page.parked_at IS NULL AND page.made_at < statement_timestamp() - interval '1 minute'
           AND slots.running = 0 AND head.status IS NULL AND NOT EXISTS (
               SELECT FROM outbox.jobs
               WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
                 AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'))::boolean AS idle
FROM page
CROSS JOIN LATERAL (
    SELECT count(*) AS running
    FROM outbox.jobs
    WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
      AND jobs.key IS NOT NULL AND jobs.status = 'running'
) AS slots
LEFT JOIN LATERAL (
    SELECT coalesce(jobs.max_active, 1) AS max_active
    FROM outbox.jobs
    WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
      AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
      AND jobs.status = 'blocked'
    ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
    LIMIT 1
) AS waiting ON true
LEFT JOIN LATERAL (
    SELECT jobs.run_at
    FROM outbox.jobs
    WHERE slots.running = 0
      AND jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
      AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
      AND jobs.status = 'pending'
    ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
    LIMIT 1
) AS ready ON true
LEFT JOIN LATERAL (
    SELECT jobs.status, jobs.on_death, jobs.run_at
    FROM outbox.jobs
    WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
      AND jobs.ordered AND jobs.status <> 'created'
      AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
    ORDER BY jobs.line_position, jobs.id
    LIMIT 1
) AS head ON true
ORDER BY page.tenant_id, page.queue, page.key
LIMIT @max_keys;

-- name: ForgetKeys :one
-- ForgetKeys deletes the rows of keys that no open job has any more.
SELECT outbox.forget_keys(@tenant_ids::uuid[], @queues::text[], @keys::text[])::integer;

-- name: MakeRoom :one
-- MakeRoom decides whether a key that may have @max_queued queued jobs takes one more. If its answer requires it, the
-- key is moved on when the transaction commits.
WITH room AS MATERIALIZED (
    SELECT m.verdict, m.job, m.queued, m.moves_on
    FROM outbox.make_room(@tenant_id::uuid, @queue::text, @key::text, @kind::text, @max_queued::integer, @when_full::text, @notify::boolean)
        AS m(verdict, job, queued, moves_on)
), freed AS (
    INSERT INTO outbox.freed_keys (tenant_id, queue, key)
    SELECT @tenant_id::uuid, @queue::text, @key::text
    FROM room
    WHERE room.moves_on
)
SELECT coalesce(room.verdict, '')::text AS verdict, room.job::uuid AS job, coalesce(room.queued, 0)::integer AS queued
FROM room;

-- name: ListKeys :many
-- ListKeys returns up to @max_keys keys that have jobs that cannot run, or that are parked, starting with the key that
-- has waited longest, from the place after the given one on; or only @key, if an open job has it. Blocked jobs are
-- found in the indexes, without reading other rows for jobs outside a line; jobs of a key are counted only for the
-- returned keys. Held jobs of a line, and dead letters that a line passes over, have no index by key: held jobs are
-- looked for only with @key, and such letters from the id @reach on, and where a key is parked for one. It reads all
-- dead letters from there on, also those that row-level security hides: see FindReach.
WITH stopped AS MATERIALIZED (
    SELECT jobs.tenant_id, jobs.queue, jobs.key, min(jobs.run_at) AS blocked_since
    FROM (
        SELECT jobs.tenant_id, jobs.queue, jobs.key, jobs.run_at
        FROM outbox.jobs
        WHERE jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running' AND jobs.status = 'blocked'
        UNION ALL
        SELECT jobs.tenant_id, jobs.queue, jobs.key, jobs.run_at
        FROM outbox.jobs
        WHERE jobs.ordered AND jobs.status <> 'created' AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
          AND jobs.status = 'blocked'
    ) AS jobs
    WHERE (sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant'))
      AND (@queue::text = '' OR jobs.queue = @queue)
      AND (@key::text = '' OR jobs.key = @key)
    GROUP BY jobs.tenant_id, jobs.queue, jobs.key
), page AS MATERIALIZED (
    (SELECT coalesce(stopped.tenant_id, parked.tenant_id) AS tenant_id, coalesce(stopped.queue, parked.queue) AS queue,
            coalesce(stopped.key, parked.key) AS key, stopped.blocked_since
     FROM stopped
     FULL JOIN (SELECT keys.tenant_id, keys.queue, keys.key FROM outbox.keys WHERE keys.parked_at IS NOT NULL) AS parked
       ON parked.tenant_id = stopped.tenant_id AND parked.queue = stopped.queue AND parked.key = stopped.key
     WHERE @key::text = ''
       AND (sqlc.narg('tenant')::uuid IS NULL OR coalesce(stopped.tenant_id, parked.tenant_id) = sqlc.narg('tenant'))
       AND (@queue::text = '' OR coalesce(stopped.queue, parked.queue) = @queue)
       AND (NOT @parked::boolean OR parked.key IS NOT NULL)
       AND (coalesce(stopped.blocked_since, 'infinity'), coalesce(stopped.queue, parked.queue), coalesce(stopped.key, parked.key),
            coalesce(stopped.tenant_id, parked.tenant_id))
           > (@after_since::timestamptz, @after_queue::text, @after_key::text, @after_tenant_id::uuid)
     ORDER BY stopped.blocked_since NULLS LAST, 2, 3, 1
     LIMIT @max_keys)
    UNION ALL
    SELECT sqlc.narg('tenant')::uuid, @queue::text, @key::text, (SELECT min(stopped.blocked_since) FROM stopped)
    WHERE @key::text <> ''
), skipped AS MATERIALIZED (
    SELECT letter.tenant_id, letter.queue, letter.key, count(*) AS dead_letters
    FROM (
        (SELECT jobs.tenant_id, jobs.queue, jobs.key, jobs.ordered, jobs.on_death
         FROM outbox.jobs
         WHERE jobs.status IN ('failed', 'dead')
           AND jobs.id >= @reach::uuid
         ORDER BY jobs.id DESC, jobs.error_fingerprint DESC) -- in the order of jobs_dead_letter_idx
        UNION ALL
        SELECT jobs.tenant_id, jobs.queue, jobs.key, jobs.ordered, jobs.on_death
        FROM page
        JOIN outbox.keys ON keys.tenant_id = page.tenant_id AND keys.queue = page.queue AND keys.key = page.key
        JOIN outbox.jobs ON jobs.id = ANY (ARRAY[keys.parked_for])
        WHERE jobs.status::text IN ('failed', 'dead') -- as text: there is an index on these, see settle.sql
          AND jobs.id < @reach::uuid
    ) AS letter
    JOIN page ON page.tenant_id = letter.tenant_id AND page.queue = letter.queue AND page.key = letter.key
    WHERE letter.ordered AND letter.on_death = 'skip'
    GROUP BY letter.tenant_id, letter.queue, letter.key
)
SELECT page.tenant_id::uuid AS tenant_id, page.queue::text AS queue, page.key::text AS key,
       counted.waiting::bigint AS waiting, counted.blocked::bigint AS blocked, counted.running::bigint AS running,
       (counted.dead_letters + coalesce(skipped.dead_letters, 0))::bigint AS dead_letters,
       page.blocked_since::timestamptz AS blocked_since, keys.park_at, keys.parked_at, keys.parked_for
FROM page
LEFT JOIN outbox.keys ON keys.tenant_id = page.tenant_id AND keys.queue = page.queue AND keys.key = page.key
LEFT JOIN skipped ON skipped.tenant_id = page.tenant_id AND skipped.queue = page.queue AND skipped.key = page.key
CROSS JOIN LATERAL (
    SELECT count(*)                                                       AS jobs,
           count(*) FILTER (WHERE jobs.status IN ('pending', 'retrying')) AS waiting,
           count(*) FILTER (WHERE jobs.status = 'blocked')                AS blocked,
           count(*) FILTER (WHERE jobs.status = 'running')                AS running,
           count(*) FILTER (WHERE jobs.status IN ('failed', 'dead'))      AS dead_letters
    FROM (
        SELECT jobs.status
        FROM outbox.jobs
        WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
        UNION ALL
        SELECT jobs.status
        FROM outbox.jobs
        WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
          AND jobs.key IS NOT NULL AND jobs.status = 'running'
        UNION ALL
        SELECT jobs.status
        FROM outbox.jobs
        WHERE jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
          AND jobs.ordered AND jobs.status <> 'created' AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
          AND jobs.status <> 'running'
        UNION ALL
        SELECT jobs.status
        FROM outbox.jobs
        WHERE @key::text <> '' AND jobs.tenant_id = page.tenant_id AND jobs.queue = page.queue AND jobs.key = page.key
          AND jobs.ordered AND jobs.status = 'created'
    ) AS jobs
) AS counted
WHERE @key::text = '' OR counted.jobs > 0 OR skipped.dead_letters > 0 OR keys.parked_at IS NOT NULL
ORDER BY page.blocked_since NULLS LAST, 2, 3, 1
LIMIT @max_keys;

-- name: ListBlockingLetters :many
-- ListBlockingLetters returns the dead letters that outbox.unblock_key would retry now: keep its conditions and these
-- the same.
WITH stood AS MATERIALIZED (
    SELECT keys.parked_at, keys.parked_for
    FROM outbox.keys
    WHERE keys.tenant_id = @tenant_id AND keys.queue = @queue AND keys.key = @key::text
), dead AS MATERIALIZED (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key::text
      AND jobs.ordered AND jobs.status <> 'created'
      AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
      AND jobs.status::text IN ('failed', 'dead')
    UNION
    SELECT jobs.id
    FROM outbox.jobs
    WHERE (SELECT stood.parked_at FROM stood) IS NOT NULL
      AND jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key::text
      AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
      AND jobs.status BETWEEN 'dead' AND 'dead'
      AND jobs.on_lapse = 'block' AND jobs.last_error_code = 'lease_lost'
    UNION
    SELECT stood.parked_for
    FROM stood
)
SELECT jobs.id, jobs.epoch
FROM dead
JOIN outbox.jobs ON jobs.id = ANY (ARRAY[dead.id])
WHERE jobs.tenant_id = @tenant_id AND jobs.queue = @queue AND jobs.key = @key::text
  AND jobs.status IN ('failed', 'dead')
  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
ORDER BY jobs.id
LIMIT 100000;

-- name: UnblockKey :one
-- UnblockKey lets a key go on and returns how many dead letters it retried; -1 if no open job has the key and nothing
-- is known of it. It records the act in the audit.
SELECT coalesce(outbox.unblock_key(@tenant_id::uuid, @queue::text, @key::text, @actor, @request_id, @reason), -1)::integer;
