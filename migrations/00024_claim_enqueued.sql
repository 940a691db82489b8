-- A job that a program stores for itself is claimed by the transaction that stores it
-- (docs/adr/0016-claimed-where-enqueued.md).

-- +goose Up
-- +goose StatementBegin
-- claim_enqueued leases a plain job of the root tenant, which this transaction has just
-- stored, to a worker, under the conditions of ClaimJobs (queries/claim.sql). It returns
-- the job, or nothing: then dispatchers claim it after the commit, as any.
--
-- It never fails. Who may store jobs need not be allowed to claim them, and the
-- transaction is somebody else's: it must not be aborted for this. The row is returned
-- after the block, which an error undoes, so that only what is written is told.
--
-- A commit that waits for no disk tells nothing: the attempt would begin although a crash
-- may undo the job. So it is left to a claim, whose commit waits for both. And a
-- transaction that sees the database as it was when it began does not see that a queue has
-- been paused since; a serializable one would be refused at its commit for having looked.
--
-- The settings are those of the dispatcher's own sessions, for the same reasons
-- (dispatcher/session.go).
CREATE FUNCTION outbox.claim_enqueued(job_id uuid, in_queue text, worker text, lease_ttl interval)
RETURNS TABLE (
    id uuid, tenant_id uuid, kind text, priority smallint, attempt integer, max_attempts integer, lost_leases integer,
    epoch bigint, key text, payload bytea, content_type text, headers jsonb, timeout interval, backoff interval[],
    run_at timestamptz, created_at timestamptz, started_at timestamptz, deadline timestamptz, watched boolean, place tid
)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    claimed boolean := false;
BEGIN
    IF current_setting('synchronous_commit') = 'off' OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN;
    END IF;
    BEGIN
        UPDATE outbox.jobs
        SET status           = 'running',
            attempt          = jobs.attempt + 1,
            epoch            = jobs.epoch + 1,
            lease_owner      = worker,
            lease_expires_at = clock_timestamp() + lease_ttl,
            started_at       = statement_timestamp()
        WHERE jobs.id = job_id
          AND jobs.queue = in_queue
          AND jobs.status = 'pending'
          AND jobs.key IS NULL
          AND jobs.tenant_id = '00000000-0000-0000-0000-000000000001'
          AND jobs.run_at <= statement_timestamp() -- now() is older than the row
          AND jobs.deadline IS NULL
          AND NOT EXISTS (
            SELECT FROM outbox.queues
            WHERE queues.queue = in_queue AND (queues.paused_at IS NOT NULL OR queues.limited))
        RETURNING jobs.id, jobs.tenant_id, jobs.kind, jobs.priority, jobs.attempt, jobs.max_attempts, jobs.lost_leases,
            jobs.epoch, jobs.key, jobs.payload, jobs.content_type, jobs.headers, jobs.timeout, jobs.backoff,
            jobs.run_at, jobs.created_at, jobs.started_at, jobs.deadline, jobs.watched, jobs.ctid
        INTO id, tenant_id, kind, priority, attempt, max_attempts, lost_leases,
            epoch, key, payload, content_type, headers, timeout, backoff,
            run_at, created_at, started_at, deadline, watched, place;
        claimed := FOUND;
    EXCEPTION WHEN OTHERS THEN
        claimed := false;
    END;
    IF claimed THEN
        RETURN NEXT;
    END IF;
END
$$;
-- +goose StatementEnd
SELECT outbox.secure(); -- the function is newer than 00014_roles.sql; whoever may store jobs may call it

-- +goose Down
DROP FUNCTION outbox.claim_enqueued(uuid, text, text, interval);
