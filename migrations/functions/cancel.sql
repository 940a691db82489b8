-- cancel cancels a job, and returns its status afterwards, or NULL if there is no such job:
--
--   cancelled     it waited, or was cancelled before: it will not run any more
--   running       its handler has been asked to stop, now or before; unless it
--                 succeeds all the same, the job ends cancelled
--   any other     nothing was done: it is closed, or a dead letter (dismiss those)
--
-- It waits for a transaction that has locked the job: a claim, a settlement, or a handler's own that has called
-- Complete or Guard.
--
-- An operator may call it, or the program that enqueued the job. It records the act in the audit, as POST
-- /jobs/{id}/cancel does, with actor, request_id and reason; see record_act.
--
-- Rows are found by their indexes, whatever plans the caller's session made while the tables were nearly empty.
CREATE OR REPLACE FUNCTION outbox.cancel(job_id uuid, actor text DEFAULT NULL, request_id text DEFAULT NULL,
    reason text DEFAULT NULL) RETURNS outbox.job_status
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    found  outbox.jobs;
    became outbox.job_status;
    asked  CONSTANT jsonb := '{"cancel_requested": true}';
BEGIN
    -- The lock gives the newest version of the row; the next statement sees whether the job was closed meanwhile.
    SELECT * INTO found FROM outbox.jobs WHERE jobs.id = job_id FOR UPDATE;
    IF found.id IS NULL THEN
        RETURN (SELECT history.status FROM outbox.history WHERE history.id = job_id LIMIT 1);
    END IF;
    IF found.status IN ('created', 'pending', 'blocked', 'retrying') THEN
        PERFORM outbox.close_jobs(ARRAY[found.id], ARRAY[found.epoch], ARRAY['cancelled']::outbox.job_status[]);
        became := 'cancelled';
        IF found.key IS NOT NULL THEN
            INSERT INTO outbox.freed_keys (tenant_id, queue, key) -- see move_freed_key_on.sql
            VALUES (found.tenant_id, found.queue, found.key);
        END IF;
    ELSIF found.status = 'running' THEN
        -- The epoch stays: the worker still owns the job, and reports how it ended.
        UPDATE outbox.jobs SET cancel_requested_at = statement_timestamp()
        WHERE jobs.id = job_id AND jobs.cancel_requested_at IS NULL;
        PERFORM pg_notify('outbox_jobs', '');
        became := 'running';
    ELSE
        RETURN found.status;
    END IF;
    PERFORM outbox.record_act('job.cancel', found.tenant_id, found.id, found.queue, NULL,
        jsonb_build_object('status', found.status)
            || CASE WHEN found.cancel_requested_at IS NOT NULL AND found.status = 'running' THEN asked ELSE '{}' END,
        jsonb_build_object('status', became) || CASE WHEN became = 'running' THEN asked ELSE '{}' END, actor, request_id, reason);
    RETURN became;
END
$$;
