-- stream_refused stores that outcomes of attempts were refused, for the streamed ones of the given jobs: each attempt
-- had lost its job, whose state stays as it is. A refusal is no change of the job, so it has the number of the last
-- one. The function locks nothing: the job may belong to another worker, and be busy.
CREATE OR REPLACE FUNCTION outbox.stream_refused(ids uuid[], epochs bigint[], attempts integer[], outcomes text[], worker text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM outbox.store_job_event(job.id, job.tenant_id, 'staleCompletionIgnored', job.streamed, NULL, job.status, input.epoch, input.attempt,
        job.queue, job.kind, job.key, statement_timestamp(), job.headers,
        concat(',"refused":', to_json(input.outcome), ',"worker":', to_json(worker)))
    FROM (SELECT unnest(ids) AS id, unnest(epochs) AS epoch, unnest(attempts) AS attempt, unnest(outcomes) AS outcome) AS input
    CROSS JOIN LATERAL (
        SELECT jobs.id, jobs.tenant_id, jobs.streamed, jobs.status, jobs.queue, jobs.kind, jobs.key, jobs.headers
        FROM outbox.jobs
        WHERE jobs.id = input.id AND jobs.streamed IS NOT NULL
        UNION ALL
        SELECT history.id, history.tenant_id, history.streamed, history.status, history.queue, history.kind, history.key, history.headers
        FROM outbox.history
        WHERE history.id = input.id AND history.streamed IS NOT NULL
        LIMIT 1
    ) AS job;
END
$$;
