-- enqueue_claimed stores a plain job of the root tenant already leased to a worker, under the conditions of ClaimJobs
-- (queries/claim.sql), and returns it: the job moves from pending to running in one step, of which nobody sees the
-- middle, and with one version of the row. If it may not claim, it stores the job like any other, which dispatchers
-- claim after the commit, and returns nothing.
--
-- The claim never fails. A role that may store jobs need not be allowed to claim them, and the transaction is the
-- caller's: it must not be aborted for this. The row is returned after the block, whose changes an error undoes, so
-- that only what was written is returned.
--
-- A commit that waits for no disk must not start the job: the attempt would begin although a crash may undo the job. So
-- the job is left to a claim, whose commit waits for both. A transaction with a snapshot from its beginning does not
-- see that a queue has been paused since, and a serializable one would be refused at its commit for having looked.
CREATE OR REPLACE FUNCTION outbox.enqueue_claimed(
    job_id uuid, in_queue text, of_kind text, with_priority smallint, attempts integer, run_timeout interval, waits text,
    content bytea, type_of_content text, with_headers text, is_watched boolean, notify boolean, worker text, lease_ttl interval
) RETURNS TABLE (job outbox.jobs, place tid)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    claimed boolean := false;
    stored  record; -- not assigned to the results directly: an error of the block undoes it
BEGIN
    IF current_setting('synchronous_commit') <> 'off' AND current_setting('transaction_isolation') = 'read committed' THEN
        BEGIN
            INSERT INTO outbox.jobs (id, queue, kind, priority, max_attempts, timeout, backoff, payload, content_type, headers, watched,
                    status, attempt, epoch, lease_owner, lease_expires_at, started_at)
            SELECT job_id, in_queue, of_kind, with_priority, attempts, run_timeout, waits::interval[], content, type_of_content,
                   with_headers::jsonb, nullif(is_watched, false),
                   'running', 1, 1, worker, clock_timestamp() + lease_ttl, statement_timestamp()
            WHERE NOT EXISTS (
                SELECT FROM outbox.queues
                WHERE queues.queue = in_queue AND (queues.paused_at IS NOT NULL OR queues.limited))
            RETURNING jobs AS job, jobs.ctid AS place INTO stored;
            claimed := FOUND;
        EXCEPTION WHEN OTHERS THEN
            claimed := false;
        END;
    END IF;
    IF claimed THEN
        job := stored.job;
        place := stored.place;
        RETURN NEXT;
        RETURN;
    END IF;
    INSERT INTO outbox.jobs (id, queue, kind, priority, max_attempts, timeout, backoff, payload, content_type, headers, watched)
    VALUES (job_id, in_queue, of_kind, with_priority, attempts, run_timeout, waits::interval[], content, type_of_content,
            with_headers::jsonb, nullif(is_watched, false));
    IF notify THEN
        PERFORM pg_notify('outbox_jobs', '');
    END IF;
END
$$;
