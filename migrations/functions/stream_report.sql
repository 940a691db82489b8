-- stream_report stores the reports of a streamed job's attempt, its progress and lines of its log, as events; it stores
-- nothing for an attempt that has lost the job. queries/record.sql calls it at most four times a second.
CREATE OR REPLACE FUNCTION outbox.stream_report(job_id uuid, of_epoch bigint, progress text, lines text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    event text;
    more  text;
    job   outbox.jobs;
    silent boolean;
BEGIN
    FOR event, more IN
        SELECT 'progress', ',"progress":' || progress WHERE progress IS NOT NULL
        UNION ALL
        SELECT 'logged', ',"lines":' || lines WHERE lines IS NOT NULL
    LOOP
        UPDATE outbox.jobs SET streamed = jobs.streamed + 1
        WHERE jobs.id = job_id AND jobs.epoch = of_epoch
        RETURNING jobs.id, jobs.tenant_id, jobs.streamed, jobs.status, jobs.epoch, jobs.attempt, jobs.queue, jobs.kind, jobs.key, jobs.headers
        INTO job.id, job.tenant_id, job.streamed, job.status, job.epoch, job.attempt, job.queue, job.kind, job.key, job.headers;
        EXIT WHEN NOT FOUND;
        -- An assignment, not PERFORM: see store_job_event.
        silent := outbox.store_job_event(job.id, job.tenant_id, event, job.streamed, job.status::text, job.status, job.epoch, job.attempt,
            job.queue, job.kind, job.key, statement_timestamp(), job.headers, more) IS NULL;
    END LOOP;
END
$$;
