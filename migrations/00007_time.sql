-- What ends a job before it is done: somebody cancels it, or its deadline comes.
-- New functions; no table is locked or changed.

-- +goose Up
-- +goose StatementBegin
-- close_jobs moves open jobs into the history and returns the ids that it moved.
-- It is the one place where a job is closed by anything but its handler's success
-- or a person's dismissal. The caller has locked the rows: (id, epoch) is the
-- fence, as for every write, and a job that moved on meanwhile is left alone. The
-- codes and messages are of the attempt that this ends, '' for none.
--
-- Whoever calls it, with whatever statistics: the rows are found by their ids.
CREATE FUNCTION outbox.close_jobs(
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
    INSERT INTO outbox.history AS h (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt,
        max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, worker,
        last_error_code, last_error_message, deadline, cancel_requested_at, parent_id)
    SELECT id, tenant_id, run_at, created_at, started_at, epoch + 1, outcome, status, attempt,
        max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, lease_owner,
        coalesce(code, last_error_code), coalesce(message, last_error_message), deadline, cancel_requested_at, parent_id
    FROM closed
    RETURNING h.id;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- cancel calls a job off, and returns its status then, or NULL if there is no such
-- job:
--
--   cancelled     it waited, or was cancelled before: it will not run any more
--   running       its handler has been asked to stop, now or before; unless it
--                 succeeds all the same, the job ends cancelled
--   any other     nothing was done: it is closed, or a dead letter (dismiss those)
--
-- It waits for a transaction that has locked the job: a claim, a settlement, or a
-- handler's own that has called Complete or Guard.
--
-- Whoever calls it, an operator or the program that enqueued the job: what it does is in
-- the audit, as it is for POST /jobs/{id}/cancel. actor, request_id and reason are what
-- stands there; see record_act.
CREATE FUNCTION outbox.cancel(job_id uuid, actor text DEFAULT NULL, request_id text DEFAULT NULL, reason text DEFAULT NULL) RETURNS outbox.job_status
LANGUAGE plpgsql AS $$
DECLARE
    found  outbox.jobs;
    became outbox.job_status;
    asked  CONSTANT jsonb := '{"cancel_requested": true}';
BEGIN
    -- The lock gives the newest version of the row; what closed meanwhile is seen by
    -- the next statement.
    SELECT * INTO found FROM outbox.jobs WHERE jobs.id = job_id FOR UPDATE;
    IF found.id IS NULL THEN
        RETURN (SELECT history.status FROM outbox.history WHERE history.id = job_id LIMIT 1);
    END IF;
    IF found.status IN ('created', 'pending', 'blocked', 'retrying') THEN
        PERFORM outbox.close_jobs(ARRAY[found.id], ARRAY[found.epoch], ARRAY['cancelled']::outbox.job_status[]);
        became := 'cancelled';
        IF found.key IS NOT NULL THEN
            -- What waits behind it moves on when this commits: 00020_keys_move_on.sql. Once
            -- is enough for all that a transaction calls off.
            INSERT INTO outbox.freed_keys (tenant_id, queue, key)
            SELECT found.tenant_id, found.queue, found.key
            WHERE NOT EXISTS (
                SELECT FROM outbox.freed_keys AS f
                WHERE f.tenant_id = found.tenant_id AND f.queue = found.queue AND f.key = found.key);
        END IF;
    ELSIF found.status = 'running' THEN
        -- The epoch stays: the worker still owns the job, and says how it ended.
        UPDATE outbox.jobs SET cancel_requested_at = statement_timestamp()
        WHERE jobs.id = job_id AND jobs.cancel_requested_at IS NULL;
        PERFORM pg_notify('outbox_jobs', '');
        became := 'running';
    ELSE
        RETURN found.status;
    END IF;
    PERFORM outbox.record_act('job.cancel', found.tenant_id, found.id, found.queue, NULL,
        jsonb_build_object('status', found.status) || CASE WHEN found.cancel_requested_at IS NOT NULL AND found.status = 'running' THEN asked ELSE '{}' END,
        jsonb_build_object('status', became) || CASE WHEN became = 'running' THEN asked ELSE '{}' END, actor, request_id, reason);
    RETURN became;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- release lets a held job run, wakes the dispatchers, and returns the status in
-- which it found the job: created if this released it, which then is in the audit;
-- NULL if it is not open.
CREATE FUNCTION outbox.release(job_id uuid, actor text DEFAULT NULL, request_id text DEFAULT NULL, reason text DEFAULT NULL) RETURNS outbox.job_status
LANGUAGE plpgsql AS $$
DECLARE
    found outbox.jobs;
BEGIN
    SELECT * INTO found FROM outbox.jobs WHERE jobs.id = job_id FOR UPDATE;
    IF found.status = 'created' THEN
        UPDATE outbox.jobs
        SET status = 'pending',
            -- It takes its place in the queue now: claims look from where they have come to.
            run_at = greatest(jobs.run_at, statement_timestamp())
        WHERE jobs.id = job_id;
        PERFORM pg_notify('outbox_jobs', '');
        PERFORM outbox.record_act('job.release', found.tenant_id, found.id, found.queue, NULL,
            jsonb_build_object('status', found.status), jsonb_build_object('status', 'pending'), actor, request_id, reason);
    END IF;
    RETURN found.status;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION outbox.release(uuid, text, text, text);
DROP FUNCTION outbox.cancel(uuid, text, text, text);
DROP FUNCTION outbox.close_jobs(uuid[], bigint[], outbox.job_status[], text[], text[]);
