-- release lets a held job run, wakes the dispatchers, and returns the status in which it found the job: created if it
-- released the job, which it then records in the audit; NULL if the job is not open. Like every act it raises the
-- epoch: an operation that has counted the job as it was leaves it alone.
--
-- Rows are found by their indexes, as in cancel.
CREATE OR REPLACE FUNCTION outbox.release(job_id uuid, actor text DEFAULT NULL, request_id text DEFAULT NULL,
    reason text DEFAULT NULL) RETURNS outbox.job_status
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    found outbox.jobs;
BEGIN
    SELECT * INTO found FROM outbox.jobs WHERE jobs.id = job_id FOR UPDATE;
    IF found.status = 'created' THEN
        UPDATE outbox.jobs
        SET status = 'pending',
            epoch  = jobs.epoch + 1,
            -- It takes its place in the queue now: claims continue from where they are.
            run_at = greatest(jobs.run_at, statement_timestamp())
        WHERE jobs.id = job_id;
        PERFORM pg_notify('outbox_jobs', '');
        PERFORM outbox.record_act('job.release', found.tenant_id, found.id, found.queue, NULL,
            jsonb_build_object('status', found.status), jsonb_build_object('status', 'pending'), actor, request_id, reason);
    END IF;
    RETURN found.status;
END
$$;
