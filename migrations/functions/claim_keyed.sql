-- Keys: ordered and limited work.
--
-- A key is (tenant, queue, key). A running job is its own slot: there is no counter of slots that could drift, and
-- whatever takes a job out of running frees a slot. Jobs that cannot run leave the index of due jobs as blocked, and
-- are promoted to pending when a slot becomes free.
--
-- The holder of the lock on the key's row makes every decision about a key (which jobs run, are blocked, are promoted,
-- whether the key is parked), in a statement that begins after the lock was taken. Both conditions matter: under READ
-- COMMITTED each statement takes a snapshot when it begins, so a statement that both locked and looked would look with
-- a snapshot from before it waited. Together they prevent a lost promotion:
--
--	settle   A leaves running                    lock, look: B is blocked -> promote
--	claim              lock, look: A runs -> B blocked, commit
--
-- Whichever of the two gets the lock first, the other one sees what it did. Only a function can do this in one round
-- trip: a client that stalls holds no key.
--
-- Order of locks: a transaction that holds rows of jobs may wait for a key's row. So a holder of a key's row waits for
-- no job's row (SKIP LOCKED), and several keys are locked in the order of their names.

-- CREATE OR REPLACE cannot change what a function returns: a function that returns the single columns of a job, as it
-- did on the main branch before 0.1.0, is dropped first.
DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_proc WHERE oid = to_regproc('outbox.claim_keyed') AND 'job' <> ALL (proargnames)) THEN
        DROP FUNCTION outbox.claim_keyed;
    END IF;
END
$$;

-- claim_keyed leases up to max_jobs due jobs of a queue to a worker: of each of tenant_ids no more than its quota, and
-- no more of a key than it has slots. A tenant's cursors are those of ClaimJobs. The function looks at as many of the
-- first jobs after them as the tenant's reach allows, and at the jobs "also", and blocks those that cannot run. Rows
-- without a job report the rest: one for each key in which jobs were blocked, and finally one without a key, which
-- counts the candidates, those passed by because another transaction has locked them or their key, and the jobs that
-- were blocked and promoted.
CREATE OR REPLACE FUNCTION outbox.claim_keyed(
    worker      text,
    lease_ttl   interval,
    tenant_ids  uuid[],
    quotas      integer[],
    reaches     integer[],
    firsts      integer[],
    lasts       integer[],
    priorities  smallint[],
    from_run_at timestamptz[],
    from_id     uuid[],
    of_queue    text,
    kinds       text[],
    also        uuid[],
    max_jobs    integer
) RETURNS TABLE (
    job outbox.jobs, halted_tenant uuid, halted_key text, looked integer, passed integer, blocked integer, promoted integer
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    places tid[]; -- of candidates
    ours   tid[]; -- the candidates that we have locked together with their key
    parked boolean[];
BEGIN
    IF EXISTS (SELECT FROM outbox.queues WHERE queues.queue = of_queue AND queues.paused_at IS NOT NULL) THEN
        RETURN;
    END IF;

    SELECT array_agg(due.place)
    INTO places
    FROM (
        (
            -- The check whether they are due comes later; here it would let the planner scan the index of due jobs
            -- instead of the primary key.
            SELECT (jobs).ctid AS place
            FROM outbox.jobs
            WHERE jobs.id = ANY (also)
            LIMIT cardinality(also)
        )
        UNION
        (
            SELECT candidate.place
            FROM (SELECT unnest(tenant_ids) AS tenant_id, unnest(reaches) AS reach, unnest(firsts) AS first, unnest(lasts) AS last) AS share
            CROSS JOIN LATERAL (
                SELECT found.place
                FROM (SELECT unnest(priorities[share.first:share.last]) AS priority, unnest(from_run_at[share.first:share.last]) AS run_at,
                             unnest(from_id[share.first:share.last]) AS id) AS cursor
                CROSS JOIN LATERAL (
                    SELECT (jobs).ctid AS place
                    FROM outbox.jobs
                    WHERE jobs.queue = of_queue
                      AND jobs.tenant_id = share.tenant_id
                      AND jobs.priority = cursor.priority
                      AND jobs.key IS NOT NULL
                      AND jobs.status IN ('pending', 'retrying')
                      AND (jobs.run_at, jobs.id) >= (cursor.run_at, cursor.id)
                      AND jobs.run_at <= statement_timestamp()
                      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                      AND jobs.kind = ANY (kinds)
                    ORDER BY jobs.run_at, jobs.id
                    LIMIT share.reach
                ) AS found
                LIMIT share.reach
            ) AS candidate
        )
    ) AS due;
    IF places IS NULL THEN
        RETURN;
    END IF;

    FOR round IN 1 .. 2 LOOP
        -- The claim does not wait for rows that another transaction has locked, and leaves them unchanged. A place may
        -- have gone to another job since we looked.
        WITH candidate AS MATERIALIZED (
            SELECT (jobs).ctid AS place, jobs.tenant_id, jobs.key
            FROM outbox.jobs
            WHERE jobs.ctid = ANY (places)
              AND jobs.queue = of_queue
              AND jobs.status IN ('pending', 'retrying')
              AND jobs.run_at <= statement_timestamp()
              AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
              AND jobs.kind = ANY (kinds)
            FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(candidate.place), array_agg(held.parked)
        INTO ours, parked
        FROM candidate
        CROSS JOIN LATERAL (
            -- Locking a row again that we have locked costs next to nothing.
            SELECT keys.parked_at IS NOT NULL AS parked
            FROM outbox.keys
            WHERE keys.tenant_id = candidate.tenant_id AND keys.queue = of_queue AND keys.key = candidate.key
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS held;
        EXIT WHEN round = 2 OR cardinality(ours) = cardinality(places);
        -- Insert keys that have no row yet, in order: two claims that insert the same rows wait for each other, once.
        INSERT INTO outbox.keys (tenant_id, queue, key)
        SELECT DISTINCT jobs.tenant_id, of_queue, jobs.key
        FROM outbox.jobs
        LEFT JOIN LATERAL (
            -- One lookup for each key: NOT EXISTS may become a join that reads all keys of the queue, by a plan made
            -- when there were none.
            SELECT true AS made
            FROM outbox.keys
            WHERE keys.tenant_id = jobs.tenant_id AND keys.queue = of_queue AND keys.key = jobs.key
            LIMIT 1
        ) AS known ON true
        WHERE jobs.ctid = ANY (places)
          AND jobs.queue = of_queue
          AND jobs.key IS NOT NULL
          AND known.made IS NULL
        ORDER BY jobs.tenant_id, jobs.key
        ON CONFLICT DO NOTHING;
        EXIT WHEN NOT FOUND;
    END LOOP;

    RETURN QUERY
    WITH queued AS (
        -- One row for each candidate that we have locked: whether it is the first of its key, and what the candidates
        -- of the key have in common.
        SELECT candidate.*,
               row_number() OVER of_key = 1 AS first,
               bool_or(ordered) OVER (PARTITION BY tenant_id, key) AS has_ordered,
               max(max_active) OVER (PARTITION BY tenant_id, key) AS most
        FROM (
            SELECT input.place, input.parked, jobs.id, jobs.tenant_id, jobs.key, jobs.priority, jobs.run_at, jobs.ordered,
                   coalesce(jobs.max_active, 1) AS max_active
            FROM unnest(ours, parked) AS input(place, parked)
            JOIN outbox.jobs ON jobs.ctid = input.place
        ) AS candidate
        WINDOW of_key AS (PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id)
    ), probed AS (
        -- One row for each candidate. The facts about a key are looked up once, with its first candidate: its used
        -- slots, the head of its line, and a blocked job that is next.
        SELECT queued.*, slots.running, slots.used, head.id AS head, head.status AS head_status, head.place AS head_place,
               halt.priority AS halt_priority, halt.run_at AS halt_run_at, halt.id AS halt_id
        FROM queued
        LEFT JOIN LATERAL (
            SELECT count(*) AS running, array_agg(jobs.slot) FILTER (WHERE jobs.slot IS NOT NULL) AS used
            FROM outbox.jobs
            WHERE queued.first AND jobs.tenant_id = queued.tenant_id AND jobs.queue = of_queue AND jobs.key = queued.key
              AND jobs.key IS NOT NULL AND jobs.status = 'running'
        ) AS slots ON true
        LEFT JOIN LATERAL (
            SELECT jobs.id, jobs.status, (jobs).ctid AS place
            FROM outbox.jobs
            WHERE queued.first AND queued.has_ordered
              AND jobs.tenant_id = queued.tenant_id AND jobs.queue = of_queue AND jobs.key = queued.key
              AND jobs.ordered AND jobs.status <> 'created'
              AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
            ORDER BY jobs.line_position, jobs.id
            LIMIT 1
        ) AS head ON true
        LEFT JOIN LATERAL (
            -- The next job is blocked, and its limit, which is lower than that of a candidate, keeps it so: the jobs
            -- behind it wait. Otherwise those that come later would keep it waiting without end.
            SELECT waiting.priority, waiting.run_at, waiting.id
            FROM (
                SELECT jobs.priority, jobs.run_at, jobs.id, coalesce(jobs.max_active, 1) AS max_active
                FROM outbox.jobs
                WHERE queued.first AND slots.running BETWEEN 1 AND queued.most - 1
                  AND jobs.tenant_id = queued.tenant_id AND jobs.queue = of_queue AND jobs.key = queued.key
                  -- These three conditions repeat the predicate of jobs_key_idx, so that the planner may use that
                  -- index; keep them.
                  AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
                  AND jobs.status = 'blocked'
                ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
                LIMIT 1
            ) AS waiting
            WHERE waiting.max_active <= slots.running
        ) AS halt ON true
    ), key_facts AS (
        -- One row for each candidate, with the facts that the first one of its key has looked up.
        SELECT place, id, priority, run_at, tenant_id, key, ordered, max_active, parked, first, head_status, head_place,
               ((first_value(halt_priority) OVER of_key, run_at, id)
                    > (priority, first_value(halt_run_at) OVER of_key, first_value(halt_id) OVER of_key)) IS TRUE AS halted,
               first_value(running) OVER of_key AS running,
               coalesce(first_value(used) OVER of_key, '{}') AS used,
               NOT parked AND (ordered IS NULL OR id IS NOT DISTINCT FROM first_value(head) OVER of_key) AS eligible
        FROM probed
        WINDOW of_key AS (PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id)
    ), judged AS MATERIALIZED (
        -- One row for each candidate: its turn among those of its key, and whether it fits. A job that its limit keeps
        -- from starting holds up those behind it; a job of a line holds up only the line.
        SELECT ranked.*,
               eligible AND NOT halted AND running + turn <= max_active
               AND coalesce(bool_and(running + turn <= max_active) FILTER (WHERE eligible AND ordered IS NULL) OVER of_key, true) AS fits
        FROM (
            SELECT key_facts.*,
                   count(*) FILTER (WHERE eligible) OVER (
                       PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id ROWS UNBOUNDED PRECEDING) AS turn
            FROM key_facts
        ) AS ranked
        WINDOW of_key AS (PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id)
    ), taken AS MATERIALIZED (
        -- One row for each job that is claimed, with its slot. A job that fits but exceeds its tenant's quota or
        -- max_jobs stays unchanged: it is due. The first job of each tenant comes before the second of any.
        SELECT place,
               -- Fewer than max_active jobs run, so at least as many slots are free as this job's turn.
               CASE WHEN max_active = 1 THEN 0 ELSE (
                   SELECT free.slot
                   FROM generate_series(0, max_active - 1) AS free(slot)
                   WHERE free.slot <> ALL (used)
                   ORDER BY free.slot
                   OFFSET turn - 1
                   LIMIT 1) END AS slot
        FROM (
            SELECT judged.*, row_number() OVER (PARTITION BY tenant_id ORDER BY priority DESC, run_at, id) AS of_tenant
            FROM judged
            WHERE fits
        ) AS fitting
        WHERE of_tenant <= coalesce(quotas[array_position(tenant_ids, tenant_id)], max_jobs)
        ORDER BY of_tenant, priority DESC, run_at, id
        LIMIT max_jobs
    ), claimed AS (
        UPDATE outbox.jobs
        SET status           = 'running',
            attempt          = jobs.attempt + 1,
            epoch            = jobs.epoch + 1,
            slot             = taken.slot,
            lease_owner      = worker,
            -- Leases follow the database's clock alone; the claim may have waited, so the lease runs from the moment of
            -- the write.
            lease_expires_at = clock_timestamp() + lease_ttl,
            started_at       = statement_timestamp()
        FROM taken
        WHERE jobs.ctid = taken.place
        RETURNING jobs AS job
    ), blocked AS (
        UPDATE outbox.jobs
        SET status = 'blocked'
        FROM judged
        WHERE jobs.ctid = judged.place
          AND NOT judged.fits
        RETURNING jobs.tenant_id, jobs.key
    ), head AS MATERIALIZED (
        -- The head of a line has become free, and no transaction has promoted it yet.
        SELECT (jobs).ctid AS place
        FROM outbox.jobs
        WHERE jobs.ctid = ANY (ARRAY(
            SELECT head_place FROM judged WHERE first AND head_status = 'blocked' AND running = 0 AND NOT parked))
          AND jobs.status = 'blocked'
        FOR UPDATE SKIP LOCKED
    ), promoted AS (
        UPDATE outbox.jobs
        SET status = 'pending'
        FROM head
        WHERE jobs.ctid = head.place
        RETURNING 1
    )
    SELECT claimed.job, NULL::uuid, NULL, 0, 0, 0, 0
    FROM claimed
    UNION ALL
    SELECT NULL, halted.tenant_id, halted.key, 0, 0, 0, 0
    FROM (SELECT DISTINCT blocked.tenant_id, blocked.key FROM blocked) AS halted
    UNION ALL
    SELECT NULL, NULL, NULL, cardinality(places), cardinality(places) - coalesce(cardinality(ours), 0),
           (SELECT count(*) FROM blocked)::integer, (SELECT count(*) FROM promoted)::integer;
END
$$;
