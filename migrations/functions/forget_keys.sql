-- forget_keys deletes the rows of keys that no open job needs: a claim inserts them again. It checks a row after
-- locking it, as everywhere.
CREATE OR REPLACE FUNCTION outbox.forget_keys(tenant_ids uuid[], queue_names text[], key_names text[]) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held_tenants uuid[];
    held_queues  text[];
    held_keys    text[];
    forgotten    integer;
BEGIN
    SELECT array_agg(held.tenant_id), array_agg(held.queue), array_agg(held.key)
    INTO held_tenants, held_queues, held_keys
    FROM (
        SELECT keys.tenant_id, keys.queue, keys.key
        FROM unnest(tenant_ids, queue_names, key_names) AS input(tenant_id, queue, key)
        JOIN outbox.keys ON keys.tenant_id = ANY (ARRAY[input.tenant_id]) AND keys.queue = input.queue COLLATE "C"
            AND keys.key = input.key COLLATE "C"
        WHERE keys.parked_at IS NULL
        FOR UPDATE OF keys SKIP LOCKED
    ) AS held;

    DELETE FROM outbox.keys
    USING unnest(held_tenants, held_queues, held_keys) AS held(tenant_id, queue, key)
    WHERE keys.tenant_id = ANY (ARRAY[held.tenant_id]) AND keys.queue = held.queue COLLATE "C" AND keys.key = held.key COLLATE "C"
      AND NOT EXISTS (
          SELECT FROM outbox.jobs
          WHERE jobs.tenant_id = keys.tenant_id AND jobs.queue = keys.queue AND jobs.key = keys.key
            AND jobs.key IS NOT NULL AND jobs.status = 'running'
          OFFSET 0) -- checked key by key; see queries/settle.sql
      AND NOT EXISTS (
          SELECT FROM outbox.jobs
          WHERE jobs.tenant_id = keys.tenant_id AND jobs.queue = keys.queue AND jobs.key = keys.key
            AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
          OFFSET 0)
      AND NOT EXISTS (
          SELECT FROM outbox.jobs
          WHERE jobs.tenant_id = keys.tenant_id AND jobs.queue = keys.queue AND jobs.key = keys.key
            AND jobs.ordered AND jobs.status <> 'created'
            AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
          OFFSET 0);
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten;
END
$$;
