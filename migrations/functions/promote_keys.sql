-- promote_keys moves keys on after jobs have left them. Up to counts[i] blocked jobs of the i-th key become pending, as
-- far as slots are free; so does the head of a line if it is its turn; and a key whose head is dead is parked if its
-- policy requires it. It returns the jobs that it promoted. It may be called at any time and by anybody: it does
-- nothing that is not due.
--
-- It waits for no row, of a key or of a job: another transaction may lock one for an hour, and the other keys must not
-- wait for it. Two kinds of claims are among those transactions. A claim that blocks a job holds the row of its key
-- until it commits. And a claim whose snapshot is older than the blocking of a job locks that job's row, sees that the
-- job is no longer due, and keeps the lock, although it does not have the key:
--
--	claim 1   B blocked, commit                                       look: A runs
--	claim 2   snapshot, B is due            lock B, leave it alone ...               commit
--	settle                                                 A ends, lock the key: B is locked
--
-- So for each key that it passed by, or of which it passed by a job, because of such a lock, it returns a row without
-- an id: the caller must look at the key again.
--
-- The reaper calls it with patient, because it comes back anyhow: then it names no key that it passed by, and leaves
-- alone what will move without it, because a due job of the same kind will be claimed and promotes the next one when it
-- ends.
CREATE OR REPLACE FUNCTION outbox.promote_keys(tenant_ids uuid[], queue_names text[], key_names text[],
    counts integer[], patient boolean DEFAULT false)
RETURNS TABLE (id uuid, tenant_id uuid, queue text, key text, kind text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held_tenants uuid[];
    held_queues  text[];
    held_keys    text[];
    held_counts  integer[];
BEGIN
    SELECT array_agg(held.tenant_id), array_agg(held.queue), array_agg(held.key), array_agg(held.n)
    INTO held_tenants, held_queues, held_keys, held_counts
    FROM (
        SELECT keys.tenant_id, keys.queue, keys.key, input.n
        FROM unnest(tenant_ids, queue_names, key_names, counts) AS input(tenant_id, queue, key, n)
        JOIN outbox.keys ON keys.tenant_id = ANY (ARRAY[input.tenant_id]) AND keys.queue = input.queue COLLATE "C"
            AND keys.key = input.key COLLATE "C"
        FOR UPDATE OF keys SKIP LOCKED
    ) AS held;
    IF NOT patient AND cardinality(held_tenants) IS DISTINCT FROM cardinality(tenant_ids) THEN
        RETURN QUERY
        SELECT NULL::uuid, input.tenant_id, input.queue, input.key, NULL::text
        FROM unnest(tenant_ids, queue_names, key_names) AS input(tenant_id, queue, key)
        CROSS JOIN LATERAL (
            SELECT FROM outbox.keys
            WHERE keys.tenant_id = input.tenant_id AND keys.queue = input.queue COLLATE "C" AND keys.key = input.key COLLATE "C"
            LIMIT 1
        ) AS stored
        -- Hashed, where an anti-join would compare every pair.
        WHERE (input.tenant_id, input.queue, input.key) NOT IN (
            SELECT held.tenant_id, held.queue, held.key FROM unnest(held_tenants, held_queues, held_keys) AS held(tenant_id, queue, key));
    END IF;
    IF held_tenants IS NULL THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH line AS MATERIALIZED (
        SELECT input.tenant_id, input.queue COLLATE "C" AS queue, input.key COLLATE "C" AS key, input.n,
               held.parked, held.park_at, slots.running,
               head.id AS head, head.status AS head_status, head.on_death, head.park_after, head.place,
               -- Counted from the death, not from when it was first seen: a head that was retried and dies again blocks
               -- the line for the whole time again.
               coalesce(head.failed_at + head.park_after, held.park_at, statement_timestamp() + head.park_after) AS parks_at
        FROM unnest(held_tenants, held_queues, held_keys, held_counts) AS input(tenant_id, queue, key, n)
        CROSS JOIN LATERAL (
            SELECT keys.parked_at IS NOT NULL AS parked, keys.park_at
            FROM outbox.keys
            WHERE keys.tenant_id = input.tenant_id AND keys.queue = input.queue COLLATE "C" AND keys.key = input.key COLLATE "C"
            LIMIT 1
        ) AS held
        CROSS JOIN LATERAL (
            SELECT count(*) AS running
            FROM outbox.jobs
            WHERE jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
              AND jobs.key IS NOT NULL AND jobs.status = 'running'
        ) AS slots
        LEFT JOIN LATERAL (
            SELECT jobs.id, jobs.status, jobs.on_death, jobs.failed_at, (jobs).ctid AS place,
                   -- Within the bounds of outbox.enqueue, which an INSERT does not check: beyond them there is no such
                   -- time. In seconds, because months and days of different signs may compare as a short time.
                   CASE WHEN jobs.park_after IS NOT NULL THEN
                       make_interval(secs => least(greatest(extract(epoch FROM jobs.park_after), 0), extract(epoch FROM interval '100 years'))::float8) END AS park_after
            FROM outbox.jobs
            WHERE jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
              AND jobs.ordered AND jobs.status <> 'created'
              AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
            ORDER BY jobs.line_position, jobs.id
            LIMIT 1
        ) AS head ON true
    ), parked AS (
        UPDATE outbox.keys
        SET park_at    = CASE WHEN line.head_dead AND line.park_after IS NOT NULL THEN line.parks_at END,
            parked_at  = CASE WHEN line.head_dead AND (line.park_after IS NULL OR line.parks_at <= statement_timestamp())
                              THEN statement_timestamp() END,
            parked_for = CASE WHEN line.head_dead THEN line.head END
        FROM (SELECT line.*, (head_status IN ('failed', 'dead') AND on_death = 'park') IS TRUE AS head_dead FROM line) AS line
        WHERE keys.tenant_id = ANY (ARRAY[line.tenant_id]) AND keys.queue = line.queue AND keys.key = line.key
          AND NOT line.parked
          AND ((line.head_dead AND (line.park_after IS NULL OR line.park_at IS DISTINCT FROM line.parks_at OR line.parks_at <= statement_timestamp()))
               OR (NOT line.head_dead AND line.park_at IS NOT NULL))
        RETURNING 1
    ), room AS MATERIALIZED (
        -- Lock no more jobs than can be promoted: locking a thousand rows means writing a thousand. Each job has a
        -- limit of its own. Where those of the first jobs are equal, no more than n can start now. Otherwise a job with
        -- a lower limit may have kept others waiting although slots were free, and all of them can start at its end;
        -- the limits of the first ones will do.
        SELECT line.tenant_id, line.queue, line.key, line.running, line.parked,
               greatest(0, CASE WHEN first.lowest IS NOT DISTINCT FROM first.highest THEN least(line.n, first.highest - line.running) ELSE (
                   SELECT max(coalesce(more.max_active, 1))
                   FROM (SELECT jobs.max_active
                         FROM outbox.jobs
                         WHERE jobs.tenant_id = line.tenant_id AND jobs.queue = line.queue AND jobs.key = line.key
                           -- These three conditions repeat the predicate of jobs_key_idx, so that the planner may use
                           -- that index; keep them, here and below.
                           AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
                           AND jobs.status = 'blocked'
                         ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
                         LIMIT 50) AS more) - line.running END) AS n
        FROM line
        CROSS JOIN LATERAL (
            SELECT min(coalesce(few.max_active, 1)) AS lowest, max(coalesce(few.max_active, 1)) AS highest
            FROM (SELECT jobs.max_active
                  FROM outbox.jobs
                  WHERE jobs.tenant_id = line.tenant_id AND jobs.queue = line.queue AND jobs.key = line.key
                    AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
                    AND jobs.status = 'blocked'
                  ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
                  LIMIT least(line.n, 49) + 1) AS few
        ) AS first
    ), next AS MATERIALIZED (
        SELECT line.tenant_id, line.queue, line.key, waiting.place, waiting.max_active, line.running,
               row_number() OVER (
                   PARTITION BY line.tenant_id, line.queue, line.key
                   ORDER BY waiting.priority DESC, waiting.run_at, waiting.id) AS turn,
               CASE WHEN patient THEN (
                   -- Counts no further than matters: due jobs beyond the limit fill it.
                   SELECT count(*)
                   FROM (SELECT FROM outbox.jobs AS due
                         WHERE due.tenant_id = line.tenant_id AND due.queue = line.queue AND due.key = line.key
                           AND due.key IS NOT NULL AND due.ordered IS NULL AND due.status <> 'running'
                           AND due.status IN ('pending', 'retrying') AND due.run_at <= now() AND due.kind = waiting.kind
                         LIMIT waiting.max_active) AS due
               ) ELSE 0 END AS due
        FROM room AS line
        CROSS JOIN LATERAL (
            SELECT (jobs).ctid AS place, jobs.id, jobs.kind, jobs.priority, jobs.run_at, coalesce(jobs.max_active, 1) AS max_active
            FROM outbox.jobs
            WHERE jobs.tenant_id = line.tenant_id AND jobs.queue = line.queue AND jobs.key = line.key
              AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
              AND jobs.status = 'blocked'
            ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
            LIMIT greatest(line.n, 0)
            FOR UPDATE SKIP LOCKED
        ) AS waiting
        WHERE NOT line.parked
    ), fitting AS MATERIALIZED (
        -- A job that its limit keeps from starting holds up those behind it; one that is left to a due job does not.
        SELECT next.*, running + due + turn <= max_active
                       AND bool_and(running + turn <= max_active) OVER (PARTITION BY tenant_id, queue, key ORDER BY turn) AS fits
        FROM next
    ), head AS MATERIALIZED (
        SELECT (jobs).ctid AS place
        FROM outbox.jobs
        WHERE jobs.ctid = ANY (ARRAY(SELECT line.place FROM line WHERE line.head_status = 'blocked' AND line.running = 0 AND NOT line.parked))
          AND jobs.status = 'blocked'
        FOR UPDATE SKIP LOCKED
    ), promoted AS (
        UPDATE outbox.jobs
        SET status = 'pending'
        WHERE jobs.ctid = ANY (ARRAY(
            SELECT fitting.place FROM fitting WHERE fitting.fits
            UNION ALL
            SELECT head.place FROM head))
          AND jobs.status = 'blocked'
        RETURNING jobs.id, jobs.tenant_id, jobs.queue, jobs.key, jobs.kind, jobs.ordered
    ), passed AS (
        -- What was promoted counts, not what fitted: a job that was edited or moved since the snapshot is locked where
        -- it stands now, and the UPDATE does not see it there.
        SELECT line.tenant_id, line.queue, line.key
        FROM room AS line
        LEFT JOIN (
            SELECT fitting.tenant_id, fitting.queue, fitting.key, array_agg(fitting.place) AS places
            FROM fitting
            GROUP BY 1, 2, 3
        ) AS got ON got.tenant_id = line.tenant_id AND got.queue = line.queue AND got.key = line.key
        LEFT JOIN (
            SELECT promoted.tenant_id, promoted.queue, promoted.key, count(*) AS n
            FROM promoted
            WHERE promoted.ordered IS NULL -- without the head, for which line.n has no room
            GROUP BY 1, 2, 3
        ) AS moved ON moved.tenant_id = line.tenant_id AND moved.queue = line.queue AND moved.key = line.key
        WHERE NOT line.parked
          AND line.n > coalesce(moved.n, 0)
          AND EXISTS (
              SELECT
              FROM (SELECT (jobs).ctid AS place
                    FROM outbox.jobs
                    WHERE jobs.tenant_id = line.tenant_id AND jobs.queue = line.queue AND jobs.key = line.key
                      AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
                      AND jobs.status = 'blocked'
                    ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
                    LIMIT line.n) AS first
              WHERE first.place <> ALL (coalesce(got.places, '{}')))
        UNION
        SELECT line.tenant_id, line.queue, line.key
        FROM line
        WHERE line.head_status = 'blocked' AND line.running = 0 AND NOT line.parked
          AND NOT EXISTS (SELECT FROM head WHERE head.place = line.place)
    )
    SELECT promoted.id, promoted.tenant_id, promoted.queue, promoted.key, promoted.kind
    FROM promoted
    UNION ALL
    SELECT NULL, passed.tenant_id, passed.queue, passed.key, NULL
    FROM passed
    WHERE NOT patient;
END
$$;
