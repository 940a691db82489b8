-- unblock_key lets a key go on: it retries the dead letters that block it, with all their attempts and at their old
-- places, and the other jobs follow. It returns how many it retried; NULL if no open job has the key and nothing is
-- known of it. It records in the audit, with actor, request_id and reason (see record_act), a job.replay of each job
-- that it retries, as RetryJob does, and a key.unblock.
--
-- Rows are found by their indexes, as in cancel.
CREATE OR REPLACE FUNCTION outbox.unblock_key(of_tenant uuid, of_queue text, of_key text,
    actor text DEFAULT NULL, request_id text DEFAULT NULL, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    dead  uuid[];
    known boolean;
    stood outbox.keys;
    was   jsonb;
    instant CONSTANT text := 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'; -- in any time zone of the session
BEGIN
    SELECT * INTO stood
    FROM outbox.keys
    WHERE keys.tenant_id = of_tenant AND keys.queue = of_queue AND keys.key = of_key;
    known := FOUND;

    -- Each part has an index; all of them as one condition have only that of the dead letters of every key. It would
    -- also fit each part if statuses were compared plainly, and look cheap while there are few dead letters.
    dead := ARRAY(
        SELECT jobs.id
        FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered AND jobs.status <> 'created'
          AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
          AND jobs.status::text IN ('failed', 'dead')
        UNION
        SELECT jobs.id
        FROM outbox.jobs
        WHERE stood.parked_at IS NOT NULL
          AND jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
          AND jobs.status BETWEEN 'dead' AND 'dead'
        UNION
        SELECT stood.parked_for
        ORDER BY id);
    -- Lock jobs before their key, in the order of their ids, and wait for them. ListBlockingLetters has the same
    -- conditions, for people who want to know before.
    SELECT array_agg(held.id) INTO dead
    FROM unnest(dead) AS input(id)
    CROSS JOIN LATERAL (
        SELECT jobs.id
        FROM outbox.jobs
        WHERE jobs.id = input.id
          AND jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.status IN ('failed', 'dead')
          AND ((jobs.ordered AND jobs.on_death IS DISTINCT FROM 'skip') OR jobs.id = stood.parked_for
               -- The key names one of the jobs that parked it. Outside a line, as many jobs may have parked it as it
               -- has slots.
               OR (stood.parked_at IS NOT NULL AND jobs.ordered IS NULL AND jobs.status = 'dead'
                   AND jobs.on_lapse = 'block' AND jobs.last_error_code = 'lease_lost'))
          -- A job past its deadline would only expire: it must be dismissed.
          AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
        FOR UPDATE
    ) AS held;
    -- Before its first claim a key has no row. Each part but the last has an index.
    IF NOT known AND dead IS NULL AND NOT EXISTS (
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
        UNION ALL
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.key IS NOT NULL AND jobs.status = 'running'
        UNION ALL
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered AND jobs.status <> 'created'
          AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
        UNION ALL
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered AND (jobs.status = 'created' OR jobs.status IN ('failed', 'dead') AND jobs.on_death = 'skip')
    ) THEN
        RETURN NULL;
    END IF;
    -- Jobs that lapsed since the look above are retried, too. A statement that would park the key from here on waits
    -- for this transaction or comes back after it, and then parks the key again.
    SELECT * INTO stood
    FROM outbox.keys
    WHERE keys.tenant_id = of_tenant AND keys.queue = of_queue AND keys.key = of_key
    FOR UPDATE;
    SELECT dead || array_agg(held.id) INTO dead
    FROM (
        SELECT jobs.id
        FROM outbox.jobs
        WHERE stood.parked_at IS NOT NULL
          AND jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered IS NULL AND jobs.status = 'dead' AND jobs.on_lapse = 'block' AND jobs.last_error_code = 'lease_lost'
          AND jobs.id <> ALL (coalesce(dead, '{}'))
          AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
        FOR UPDATE SKIP LOCKED -- a holder of a key's row waits for no job's row
    ) AS held;
    UPDATE outbox.keys
    SET parked_at = NULL, park_at = NULL, parked_for = NULL
    WHERE keys.tenant_id = of_tenant AND keys.queue = of_queue AND keys.key = of_key;
    PERFORM outbox.record_act('job.replay', jobs.tenant_id, jobs.id, jobs.queue, NULL,
        jsonb_build_object('status', jobs.status, 'attempt', jobs.attempt, 'lost_leases', jobs.lost_leases,
            'run_at', to_char(jobs.run_at AT TIME ZONE 'UTC', instant), 'error_code', jobs.last_error_code),
        jsonb_build_object('status', 'pending', 'attempt', 0,
            'run_at', to_char(least(jobs.run_at, statement_timestamp()) AT TIME ZONE 'UTC', instant)),
        actor, request_id, reason)
    FROM outbox.jobs
    WHERE jobs.id = ANY (dead);
    UPDATE outbox.jobs
    SET status = 'pending', epoch = jobs.epoch + 1, attempt = 0, lost_leases = 0, run_at = least(jobs.run_at, statement_timestamp()),
        unavailable_since = NULL, failed_at = NULL, error_fingerprint = NULL
    WHERE jobs.id = ANY (dead);
    PERFORM outbox.promote_keys(ARRAY[of_tenant], ARRAY[of_queue], ARRAY[of_key], ARRAY[1000]);
    PERFORM pg_notify('outbox_jobs', '');
    was := jsonb_build_object('parked_at', to_char(stood.parked_at AT TIME ZONE 'UTC', instant))
        || jsonb_strip_nulls(jsonb_build_object('park_at', to_char(stood.park_at AT TIME ZONE 'UTC', instant), 'parked_for', stood.parked_for));
    PERFORM outbox.record_act('key.unblock', of_tenant, NULL, of_queue, of_key, was,
        jsonb_build_object('parked_at', NULL, 'retried', coalesce(cardinality(dead), 0)), actor, request_id, reason);
    RETURN coalesce(cardinality(dead), 0);
END
$$;
