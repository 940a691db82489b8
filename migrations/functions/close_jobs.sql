-- close_jobs moves open jobs into the history and returns the ids that it moved. Every job is closed here unless its
-- handler has succeeded or an operator dismisses it. The caller has locked the rows: (id, epoch) is the fence, as for
-- every write, and a job that moved on meanwhile is left alone. The codes and messages belong to the attempt that this
-- ends; '' means none.
--
-- The rows are found by their ids, whatever the statistics are.
CREATE OR REPLACE FUNCTION outbox.close_jobs(
    ids      uuid[],
    epochs   bigint[],
    outcomes outbox.job_status[],
    codes    text[] DEFAULT '{}',
    messages text[] DEFAULT '{}'
) RETURNS SETOF uuid
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH input AS MATERIALIZED (
        SELECT unnest(ids) AS id, unnest(epochs) AS epoch, unnest(outcomes) AS outcome,
               nullif(unnest(codes), '') AS code, nullif(unnest(messages), '') AS message
    ), closed AS (
        DELETE FROM outbox.jobs
        USING input
        WHERE jobs.id = ANY (ARRAY[input.id]) -- not =: see queries/settle.sql
          AND jobs.epoch = input.epoch
        RETURNING jobs.*, input.outcome, input.code, input.message
    )
    INSERT INTO outbox.history AS h (status, id, tenant_id, kind, priority, attempt, max_attempts, lost_leases, epoch, key, payload, content_type,
        headers, timeout, backoff, run_at, created_at, started_at, deadline, streamed, queue, closed_from,
        worker, last_error_code, last_error_message, cancel_requested_at, parent_id)
    SELECT outcome, id, tenant_id, kind, priority, attempt, max_attempts, lost_leases, epoch + 1, key, payload,
        content_type, headers, timeout, backoff, run_at, created_at, started_at, deadline, streamed, queue,
        status, lease_owner, coalesce(code, last_error_code), coalesce(message, last_error_message),
        cancel_requested_at, parent_id
    FROM closed
    RETURNING h.id;
END
$$;
