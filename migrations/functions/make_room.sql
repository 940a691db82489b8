-- make_room decides whether a key that may have max_queued queued jobs takes one more. Held jobs are not queued yet,
-- and running ones no longer are.
--
--	accepted   there is room
--	rejected   there is none
--	coalesced  there is none; job is the newest queued one of of_kind, which will do
--	replaced   there was none; job was the oldest queued one of of_kind, and is closed as skipped
--
-- A job of another kind is never coalesced into or replaced: it may belong to another program.
--
-- A job that stands for a request must not start before the changes that the request is about have been committed with
-- it. Otherwise it would work on the state before them, and no job would look again. So it is locked until the
-- transaction ends, and dispatchers are woken then:
--
--	P   change S; coalesced into J                 commit
--	D                               claim: not J          claim J, reads the new S
--
-- moves_on reports that the key must be moved on when the transaction commits: the job that it was about is gone, or
-- could not be promoted meanwhile.
--
-- A caller that is accepted, or replaces a job, stores its own job in the same transaction. The limit is exact among
-- all callers: they wait for one another's transactions to end, by a lock that nobody else takes, so neither claims nor
-- settlements wait for a producer. The verdict isolation means that the transaction is not READ COMMITTED, so its
-- snapshot may be too old to count.
--
-- A job that a claim takes meanwhile is running, and its row must not stay locked: its settlement would wait for the
-- producer's COMMIT, and the producer possibly for the handler. A lock that was waited for stays although its row no
-- longer qualifies, but not if the block that took it ends by an exception. A block is a subtransaction: a transaction
-- with more than 64 such requests on different jobs slows all snapshots down a little until it ends.
--
-- Rows are found by their indexes, as in cancel.
CREATE OR REPLACE FUNCTION outbox.make_room(of_tenant uuid, of_queue text, of_key text, of_kind text,
    max_queued integer, when_full text, notify boolean,
    OUT verdict text, OUT job uuid, OUT queued integer, OUT moves_on boolean)
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
    epoch bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        verdict := 'isolation';
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws(' ', of_tenant, of_queue, of_key), 7818701));
    LOOP
        moves_on := false;
        -- A job whose deadline has passed will never run.
        SELECT count(*), (array_agg(waiting.id ORDER BY waiting.id DESC) FILTER (WHERE waiting.kind = of_kind))[1]
        INTO queued, job
        FROM (
            SELECT jobs.id, jobs.kind
            FROM outbox.jobs
            WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
              -- These three conditions repeat the predicate of jobs_key_idx, so that the planner may use that index;
              -- keep them.
              AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
              AND jobs.status IN ('pending', 'blocked', 'retrying')
              AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
            UNION ALL
            SELECT jobs.id, jobs.kind
            FROM outbox.jobs
            WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
              AND jobs.ordered AND jobs.status <> 'created'
              AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
              AND jobs.status IN ('pending', 'blocked', 'retrying')
              AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
        ) AS waiting;
        IF queued < max_queued THEN
            verdict := 'accepted';
            job := NULL;
            RETURN;
        ELSIF when_full = 'coalesce' AND job IS NOT NULL THEN
            -- If a claim is about to take the job, wait for it: then the job runs, and does not stand for this one.
            -- Only the next look sees that, so everything is checked again.
            BEGIN
                SELECT jobs.status = 'blocked' INTO STRICT moves_on
                FROM outbox.jobs
                WHERE jobs.id = job
                  AND jobs.status IN ('pending', 'blocked', 'retrying')
                FOR SHARE;
            EXCEPTION WHEN no_data_found THEN
                CONTINUE;
            END;
            verdict := 'coalesced';
            IF notify THEN
                PERFORM pg_notify('outbox_jobs', '');
            END IF;
            RETURN;
        ELSIF when_full <> 'replace-oldest' OR job IS NULL THEN
            verdict := 'rejected';
            job := NULL;
            RETURN;
        END IF;
        -- If a claim is about to take the job, wait for it: then the job runs, and there is room. Only this look sees
        -- that, so everything is checked again.
        BEGIN
            SELECT jobs.id, jobs.epoch
            INTO STRICT job, epoch
            FROM outbox.jobs
            WHERE jobs.id = (
                SELECT waiting.id
                FROM (
                    (
                        SELECT jobs.id, jobs.created_at
                        FROM outbox.jobs
                        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
                          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
                          AND jobs.status IN ('pending', 'blocked', 'retrying')
                          AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                          AND jobs.kind = of_kind
                        ORDER BY jobs.created_at, jobs.id
                        LIMIT 1
                    )
                    UNION ALL
                    (
                        SELECT jobs.id, jobs.created_at
                        FROM outbox.jobs
                        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
                          AND jobs.ordered AND jobs.status <> 'created'
                          AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
                          AND jobs.status IN ('pending', 'blocked', 'retrying')
                          AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                          AND jobs.kind = of_kind
                        ORDER BY jobs.line_position, jobs.id
                        LIMIT 1
                    )
                ) AS waiting
                ORDER BY waiting.created_at, waiting.id
                LIMIT 1)
              AND jobs.status IN ('pending', 'blocked', 'retrying')
            FOR UPDATE;
        EXCEPTION WHEN no_data_found THEN
            CONTINUE;
        END;
        PERFORM outbox.close_jobs(ARRAY[job], ARRAY[epoch], ARRAY['skipped']::outbox.job_status[]);
        verdict := 'replaced';
        moves_on := true;
        RETURN;
    END LOOP;
END
$$;
