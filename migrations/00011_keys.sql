-- Keys: ordered and limited work.
--
-- A key is (tenant, queue, key). A running job is its own slot: nothing counts
-- slots, so nothing can drift, and whatever takes a job out of running frees one.
-- Jobs that cannot run leave the index of due jobs as blocked, and are promoted
-- to pending when a slot frees.
--
-- What is decided about a key (which jobs run, are blocked, are promoted, whether
-- it is parked) is decided by whoever holds the lock of the key's row, in a
-- statement that begins after the lock was taken. Both matter: under READ
-- COMMITTED each statement has a snapshot of its own, taken when it begins, so a
-- statement that locked and looked at once would look with a snapshot from before
-- it waited. Taken together they close the race of the lost promotion:
--
--	settle   A leaves running                    lock, look: B is blocked → promote
--	claim              lock, look: A runs → B blocked, commit
--
-- Whichever of the two has the lock first, the other one sees what it did. Only a
-- function can do this in one round trip: a client that stalls holds no key.
--
-- Order of locks: a key's row may be waited for while rows of jobs are held, so
-- whoever holds a key's row waits for no job's row (SKIP LOCKED), and several
-- keys are waited for in the order of their names.

-- +goose Up

-- A row exists for a key that a claim has looked at; the reaper takes it away
-- when no open job bears the key.
CREATE TABLE outbox.keys (
    tenant_id  uuid             NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    made_at    timestamptz      NOT NULL DEFAULT statement_timestamp(),
    park_at    timestamptz, -- a dead head that holds up the line is waited for until then
    parked_at  timestamptz, -- no job of the key starts until somebody unblocks it
    parked_for uuid,        -- the job because of which
    PRIMARY KEY (tenant_id, queue, key)
);

CREATE INDEX keys_parked_idx ON outbox.keys (parked_at) WHERE parked_at IS NOT NULL;

-- Every predicate begins with what is false for a job without a key.

CREATE INDEX jobs_keyed_due_idx ON outbox.jobs (queue, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE key IS NOT NULL AND status IN ('pending', 'retrying');

-- The limit is also the database's own: a slot holds one running job, and
-- jobs_key_rules says how many slots there are.
CREATE UNIQUE INDEX jobs_slot_idx ON outbox.jobs (tenant_id, queue, key, slot)
    WHERE key IS NOT NULL AND status = 'running';

-- What waits with a key and in no line: the next one to be promoted is the first
-- blocked entry of its key.
CREATE INDEX jobs_key_idx ON outbox.jobs (tenant_id, queue, key, status, priority DESC, run_at, id)
    WHERE key IS NOT NULL AND ordered IS NULL AND status <> 'running';

-- The line of an ordered key: its head is the first entry. Held jobs are not in
-- line yet, nor are dead letters that the others pass over.
CREATE INDEX jobs_line_idx ON outbox.jobs (tenant_id, queue, key, line_position, id)
    WHERE ordered AND status <> 'created' AND (status NOT IN ('failed', 'dead') OR on_death IS DISTINCT FROM 'skip');

-- Positions in the order of commits: an ordered job takes its number while its
-- transaction commits, so no producer waits for another. Transactions whose
-- COMMITs overlap in time may be numbered either way; the statements of one
-- transaction keep their order. For other jobs WHEN is false when they are
-- inserted, and nothing is queued. It runs as its owner: a producer need not have
-- the right to change jobs.
CREATE SEQUENCE outbox.commit_order;

-- +goose StatementBegin
CREATE FUNCTION outbox.take_position() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE outbox.jobs SET line_position = nextval('outbox.commit_order') WHERE id = NEW.id;
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE CONSTRAINT TRIGGER jobs_take_position
    AFTER INSERT ON outbox.jobs
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW
    WHEN (NEW.ordered AND NEW.key IS NOT NULL AND NEW.line_position IS NULL)
    EXECUTE FUNCTION outbox.take_position();

-- +goose StatementBegin
-- claim_keyed leases up to max_jobs due jobs of a queue to a worker, no more of a
-- key than it has slots, and blocks those of up to max_candidates that it looked
-- at and that cannot run. Scans start as in ClaimJobs; the jobs "also" are looked
-- at besides. Rows without an id tell what else was done: one for each key of
-- which something was blocked, and at last, without a key, how many candidates
-- were looked at, how many passed by because somebody else has them or their key,
-- and how many jobs were blocked and promoted.
CREATE FUNCTION outbox.claim_keyed(
    worker         text,
    lease_ttl      interval,
    priorities     smallint[],
    from_run_at    timestamptz[],
    from_id        uuid[],
    of_queue       text,
    kinds          text[],
    also           uuid[],
    max_jobs       integer,
    max_candidates integer
) RETURNS TABLE (
    id uuid, tenant_id uuid, kind text, priority smallint, attempt integer, max_attempts integer, lost_leases integer,
    epoch bigint, key text, payload bytea, content_type text, headers jsonb, timeout interval, backoff interval[],
    run_at timestamptz, created_at timestamptz, started_at timestamptz, deadline timestamptz, watched boolean,
    looked integer, passed integer, blocked integer, promoted integer
)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    places tid[]; -- of candidates
    ours   tid[]; -- of those that we have locked, and their key
    parked boolean[];
BEGIN
    IF EXISTS (SELECT FROM outbox.queues WHERE queues.queue = of_queue AND queues.paused_at IS NOT NULL) THEN
        RETURN;
    END IF;

    SELECT array_agg(due.place)
    INTO places
    FROM (
        (
            -- Whether they are due is asked below; here it would let the planner walk
            -- the index of due jobs instead of the primary key.
            SELECT (jobs).ctid AS place
            FROM outbox.jobs
            WHERE jobs.id = ANY (also)
            LIMIT max_candidates
        )
        UNION
        (
            SELECT candidate.place
            FROM (SELECT unnest(priorities) AS priority, unnest(from_run_at) AS run_at, unnest(from_id) AS id) AS level
            CROSS JOIN LATERAL (
                SELECT (jobs).ctid AS place
                FROM outbox.jobs
                WHERE jobs.queue = of_queue
                  AND jobs.priority = level.priority
                  AND jobs.key IS NOT NULL
                  AND jobs.status IN ('pending', 'retrying')
                  AND (jobs.run_at, jobs.id) >= (level.run_at, level.id)
                  AND jobs.run_at <= now()
                  AND (jobs.deadline IS NULL OR jobs.deadline > now())
                  AND jobs.kind = ANY (kinds)
                ORDER BY jobs.run_at, jobs.id
                LIMIT max_candidates
            ) AS candidate
            LIMIT max_candidates
        )
    ) AS due;
    IF places IS NULL THEN
        RETURN;
    END IF;

    FOR round IN 1 .. 2 LOOP
        -- What somebody else has is not waited for, and stays as it is. A place may
        -- have gone to another job since we looked.
        WITH candidate AS MATERIALIZED (
            SELECT (jobs).ctid AS place, jobs.tenant_id, jobs.key
            FROM outbox.jobs
            WHERE jobs.ctid = ANY (places)
              AND jobs.queue = of_queue
              AND jobs.status IN ('pending', 'retrying')
              AND jobs.run_at <= now()
              AND (jobs.deadline IS NULL OR jobs.deadline > now())
              AND jobs.kind = ANY (kinds)
            FOR UPDATE SKIP LOCKED
        )
        SELECT array_agg(candidate.place), array_agg(held.parked)
        INTO ours, parked
        FROM candidate
        CROSS JOIN LATERAL (
            -- To lock a row again that is ours costs next to nothing.
            SELECT keys.parked_at IS NOT NULL AS parked
            FROM outbox.keys
            WHERE keys.tenant_id = candidate.tenant_id AND keys.queue = of_queue AND keys.key = candidate.key
            LIMIT 1
            FOR UPDATE SKIP LOCKED
        ) AS held;
        EXIT WHEN round = 2 OR cardinality(ours) = cardinality(places);
        -- Keys that nobody has claimed of yet, in order: two claims that make the same
        -- rows wait for each other, once.
        INSERT INTO outbox.keys (tenant_id, queue, key)
        SELECT DISTINCT jobs.tenant_id, of_queue, jobs.key
        FROM outbox.jobs
        LEFT JOIN LATERAL (
            -- Looked up for each: as NOT EXISTS it may be a join that reads all keys of the
            -- queue, by a plan made when there were none.
            SELECT true AS made
            FROM outbox.keys
            WHERE keys.tenant_id = jobs.tenant_id AND keys.queue = of_queue AND keys.key = jobs.key
            LIMIT 1
        ) AS known ON true
        WHERE jobs.ctid = ANY (places)
          AND jobs.queue = of_queue
          AND jobs.key IS NOT NULL
          AND known.made IS NULL
        ORDER BY jobs.tenant_id, jobs.key
        ON CONFLICT DO NOTHING;
        EXIT WHEN NOT FOUND;
    END LOOP;

    RETURN QUERY
    WITH queued AS (
        SELECT candidate.*,
               row_number() OVER of_key = 1 AS first,
               bool_or(ordered) OVER (PARTITION BY tenant_id, key) AS has_line
        FROM (
            SELECT input.place, input.parked, jobs.id, jobs.tenant_id, jobs.key, jobs.priority, jobs.run_at, jobs.ordered,
                   coalesce(jobs.max_active, 1) AS max_active
            FROM unnest(ours, parked) AS input(place, parked)
            JOIN outbox.jobs ON jobs.ctid = input.place
        ) AS candidate
        WINDOW of_key AS (PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id)
    ), probed AS (
        -- What is true of a key is looked up once, beside its first candidate.
        SELECT queued.*, slots.running, slots.used, head.id AS head, head.status AS head_status, head.place AS head_place
        FROM queued
        LEFT JOIN LATERAL (
            SELECT count(*) AS running, array_agg(jobs.slot) FILTER (WHERE jobs.slot IS NOT NULL) AS used
            FROM outbox.jobs
            WHERE queued.first AND jobs.tenant_id = queued.tenant_id AND jobs.queue = of_queue AND jobs.key = queued.key
              AND jobs.key IS NOT NULL AND jobs.status = 'running'
        ) AS slots ON true
        LEFT JOIN LATERAL (
            SELECT jobs.id, jobs.status, (jobs).ctid AS place
            FROM outbox.jobs
            WHERE queued.first AND queued.has_line
              AND jobs.tenant_id = queued.tenant_id AND jobs.queue = of_queue AND jobs.key = queued.key
              AND jobs.ordered AND jobs.status <> 'created'
              AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
            ORDER BY jobs.line_position, jobs.id
            LIMIT 1
        ) AS head ON true
    ), spread AS (
        SELECT place, id, priority, run_at, tenant_id, key, max_active, parked, first, head_status, head_place,
               first_value(running) OVER of_key AS running,
               coalesce(first_value(used) OVER of_key, '{}') AS used,
               NOT parked AND (ordered IS NULL OR id IS NOT DISTINCT FROM first_value(head) OVER of_key) AS eligible
        FROM probed
        WINDOW of_key AS (PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id)
    ), judged AS MATERIALIZED (
        SELECT ranked.*, eligible AND running + turn <= max_active AS fits
        FROM (
            SELECT spread.*,
                   count(*) FILTER (WHERE eligible) OVER (
                       PARTITION BY tenant_id, key ORDER BY priority DESC, run_at, id ROWS UNBOUNDED PRECEDING) AS turn
            FROM spread
        ) AS ranked
    ), taken AS MATERIALIZED (
        -- One that fits but is beyond max_jobs stays as it is: it is due.
        -- The first of each tenant come before the second of any.
        SELECT place,
               -- Fewer than max_active jobs run, so at least as many slots as this one's
               -- turn are free.
               CASE WHEN max_active = 1 THEN 0 ELSE (
                   SELECT free.slot
                   FROM generate_series(0, max_active - 1) AS free(slot)
                   WHERE free.slot <> ALL (used)
                   ORDER BY free.slot
                   OFFSET turn - 1
                   LIMIT 1) END AS slot
        FROM judged
        WHERE fits
        ORDER BY row_number() OVER (PARTITION BY tenant_id ORDER BY priority DESC, run_at, id), priority DESC, run_at, id
        LIMIT max_jobs
    ), claimed AS (
        UPDATE outbox.jobs
        SET status           = 'running',
            attempt          = jobs.attempt + 1,
            epoch            = jobs.epoch + 1,
            slot             = taken.slot,
            lease_owner      = worker,
            -- The database's clock is the only one that leases know; the claim may have
            -- waited, so the lease runs from the moment of the write.
            lease_expires_at = clock_timestamp() + lease_ttl,
            started_at       = statement_timestamp()
        FROM taken
        WHERE jobs.ctid = taken.place
        RETURNING jobs.id, jobs.tenant_id, jobs.kind, jobs.priority, jobs.attempt, jobs.max_attempts, jobs.lost_leases,
            jobs.epoch, jobs.key, jobs.payload, jobs.content_type, jobs.headers, jobs.timeout, jobs.backoff,
            jobs.run_at, jobs.created_at, jobs.started_at, jobs.deadline, jobs.watched
    ), blocked AS (
        UPDATE outbox.jobs
        SET status = 'blocked'
        FROM judged
        WHERE jobs.ctid = judged.place
          AND NOT judged.fits
        RETURNING jobs.tenant_id, jobs.key
    ), head AS MATERIALIZED (
        -- The head of a line has become free and nobody has promoted it yet.
        SELECT (jobs).ctid AS place
        FROM outbox.jobs
        WHERE jobs.ctid = ANY (ARRAY(
            SELECT head_place FROM judged WHERE first AND head_status = 'blocked' AND running = 0 AND NOT parked))
          AND jobs.status = 'blocked'
        FOR UPDATE SKIP LOCKED
    ), promoted AS (
        UPDATE outbox.jobs
        SET status = 'pending'
        FROM head
        WHERE jobs.ctid = head.place
        RETURNING 1
    )
    SELECT claimed.*, 0, 0, 0, 0
    FROM claimed
    UNION ALL
    SELECT NULL, halted.tenant_id, NULL, NULL, NULL, NULL, NULL, NULL, halted.key, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0
    FROM (SELECT DISTINCT blocked.tenant_id, blocked.key FROM blocked) AS halted
    UNION ALL
    SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
           cardinality(places), cardinality(places) - coalesce(cardinality(ours), 0),
           (SELECT count(*) FROM blocked)::integer, (SELECT count(*) FROM promoted)::integer;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- promote_keys moves keys on after jobs have left them: up to counts[i] blocked
-- jobs of the i-th key become pending, as far as slots are free; the head of a
-- line does if it is its turn; and a key whose head is dead is parked if its
-- policy says so. It returns what it promoted. It may be called at any time and by
-- anybody: what is not due is not done.
--
-- patient is the reaper's: it waits for nobody who has a key, and leaves alone
-- what will move by itself, because a due job of the same kind will be claimed and
-- promotes the next one when it ends.
CREATE FUNCTION outbox.promote_keys(tenant_ids uuid[], queue_names text[], key_names text[], counts integer[], patient boolean DEFAULT false)
RETURNS TABLE (id uuid, queue text, kind text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    held_tenants uuid[];
    held_queues  text[];
    held_keys    text[];
    held_counts  integer[];
BEGIN
    IF patient THEN
        SELECT array_agg(held.tenant_id), array_agg(held.queue), array_agg(held.key), array_agg(held.n)
        INTO held_tenants, held_queues, held_keys, held_counts
        FROM (
            SELECT keys.tenant_id, keys.queue, keys.key, input.n
            FROM unnest(tenant_ids, queue_names, key_names, counts) AS input(tenant_id, queue, key, n)
            JOIN outbox.keys ON keys.tenant_id = ANY (ARRAY[input.tenant_id]) AND keys.queue = input.queue COLLATE "C" AND keys.key = input.key COLLATE "C"
            FOR UPDATE OF keys SKIP LOCKED
        ) AS held;
    ELSE
        SELECT array_agg(held.tenant_id), array_agg(held.queue), array_agg(held.key), array_agg(held.n)
        INTO held_tenants, held_queues, held_keys, held_counts
        FROM (
            SELECT keys.tenant_id, keys.queue, keys.key, input.n
            FROM unnest(tenant_ids, queue_names, key_names, counts) AS input(tenant_id, queue, key, n)
            JOIN outbox.keys ON keys.tenant_id = ANY (ARRAY[input.tenant_id]) AND keys.queue = input.queue COLLATE "C" AND keys.key = input.key COLLATE "C"
            ORDER BY input.tenant_id, input.queue COLLATE "C", input.key COLLATE "C"
            FOR UPDATE OF keys
        ) AS held;
    END IF;
    IF held_tenants IS NULL THEN
        RETURN;
    END IF;

    RETURN QUERY
    WITH line AS MATERIALIZED (
        SELECT input.tenant_id, input.queue COLLATE "C" AS queue, input.key COLLATE "C" AS key, input.n,
               held.parked, held.park_at, slots.running,
               head.id AS head, head.status AS head_status, head.on_death, head.park_after, head.place
        FROM unnest(held_tenants, held_queues, held_keys, held_counts) AS input(tenant_id, queue, key, n)
        CROSS JOIN LATERAL (
            SELECT keys.parked_at IS NOT NULL AS parked, keys.park_at
            FROM outbox.keys
            WHERE keys.tenant_id = input.tenant_id AND keys.queue = input.queue COLLATE "C" AND keys.key = input.key COLLATE "C"
            LIMIT 1
        ) AS held
        CROSS JOIN LATERAL (
            SELECT count(*) AS running
            FROM outbox.jobs
            WHERE jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
              AND jobs.key IS NOT NULL AND jobs.status = 'running'
        ) AS slots
        LEFT JOIN LATERAL (
            SELECT jobs.id, jobs.status, jobs.on_death, jobs.park_after, (jobs).ctid AS place
            FROM outbox.jobs
            WHERE jobs.tenant_id = input.tenant_id AND jobs.queue = input.queue COLLATE "C" AND jobs.key = input.key COLLATE "C"
              AND jobs.ordered AND jobs.status <> 'created'
              AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
            ORDER BY jobs.line_position, jobs.id
            LIMIT 1
        ) AS head ON true
    ), parked AS (
        UPDATE outbox.keys
        SET park_at    = CASE WHEN line.head_dead AND line.park_after IS NOT NULL
                              THEN coalesce(keys.park_at, statement_timestamp() + line.park_after) END,
            parked_at  = CASE WHEN line.head_dead AND (line.park_after IS NULL OR keys.park_at <= statement_timestamp())
                              THEN statement_timestamp() END,
            parked_for = CASE WHEN line.head_dead THEN line.head END
        FROM (SELECT line.*, (head_status IN ('failed', 'dead') AND on_death = 'park') IS TRUE AS head_dead FROM line) AS line
        WHERE keys.tenant_id = ANY (ARRAY[line.tenant_id]) AND keys.queue = line.queue AND keys.key = line.key
          AND NOT line.parked
          AND ((line.head_dead AND (line.park_after IS NULL OR line.park_at IS NULL OR line.park_at <= statement_timestamp()))
               OR (NOT line.head_dead AND line.park_at IS NOT NULL))
        RETURNING 1
    ), next AS MATERIALIZED (
        SELECT waiting.place, waiting.max_active, line.running,
               row_number() OVER (PARTITION BY line.tenant_id, line.queue, line.key ORDER BY waiting.priority DESC, waiting.run_at, waiting.id) AS turn,
               CASE WHEN patient THEN (
                   -- Only as far as it matters: what is due beyond the limit fills it.
                   SELECT count(*)
                   FROM (SELECT FROM outbox.jobs AS due
                         WHERE due.tenant_id = line.tenant_id AND due.queue = line.queue AND due.key = line.key
                           AND due.key IS NOT NULL AND due.ordered IS NULL AND due.status <> 'running'
                           AND due.status IN ('pending', 'retrying') AND due.run_at <= now() AND due.kind = waiting.kind
                         LIMIT waiting.max_active) AS due
               ) ELSE 0 END AS due
        FROM line
        CROSS JOIN LATERAL (
            SELECT (jobs).ctid AS place, jobs.id, jobs.kind, jobs.priority, jobs.run_at, coalesce(jobs.max_active, 1) AS max_active
            FROM outbox.jobs
            WHERE jobs.tenant_id = line.tenant_id AND jobs.queue = line.queue AND jobs.key = line.key
              AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
              AND jobs.status = 'blocked'
            ORDER BY jobs.tenant_id, jobs.queue, jobs.key, jobs.status, jobs.priority DESC, jobs.run_at, jobs.id
            LIMIT line.n
            FOR UPDATE SKIP LOCKED
        ) AS waiting
        WHERE NOT line.parked
    ), head AS MATERIALIZED (
        SELECT (jobs).ctid AS place
        FROM outbox.jobs
        WHERE jobs.ctid = ANY (ARRAY(SELECT line.place FROM line WHERE line.head_status = 'blocked' AND line.running = 0 AND NOT line.parked))
          AND jobs.status = 'blocked'
        FOR UPDATE SKIP LOCKED
    )
    UPDATE outbox.jobs
    SET status = 'pending'
    WHERE jobs.ctid = ANY (ARRAY(
        SELECT next.place FROM next WHERE next.running + next.due + next.turn <= next.max_active
        UNION ALL
        SELECT head.place FROM head))
      AND jobs.status = 'blocked'
    RETURNING jobs.id, jobs.queue, jobs.kind;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- make_room decides on one more queued job of a key that may have max_queued of
-- them. Held jobs are not queued yet, running ones no more.
--
--	accepted   there is room
--	rejected   there is none
--	coalesced  there is none; job is the newest queued one of of_kind, which will do
--	replaced   there was none; job was the oldest queued one, and is closed as skipped
--
-- A job that stands for a request must not start before what the request is about has
-- been committed with it, or it would work on what was there before and nobody would
-- look again. So it is locked until the transaction ends, and dispatchers are woken
-- then:
--
--	P   change S; coalesced into J                 commit
--	D                               claim: not J          claim J, reads the new S
--
-- moves_on says that the key is to be moved on when the transaction commits: the job
-- that it was about is gone, or could not be promoted meanwhile.
--
-- Whoever is accepted or replaced stores its job in the same transaction. It is
-- exact among all who ask: they wait for one another's transactions to end, by a
-- lock that nobody else takes, so neither claims nor settlements wait for a
-- producer. The verdict isolation says that the transaction's snapshot is older
-- than the lock would be.
CREATE FUNCTION outbox.make_room(of_tenant uuid, of_queue text, of_key text, of_kind text, max_queued integer, when_full text, notify boolean,
    OUT verdict text, OUT job uuid, OUT queued integer, OUT moves_on boolean)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        verdict := 'isolation';
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(hashtextextended(concat_ws(' ', of_tenant, of_queue, of_key), 7818701));
    LOOP
        moves_on := false;
        -- What has its deadline behind it will never run.
        SELECT count(*), (array_agg(waiting.id ORDER BY waiting.id DESC) FILTER (WHERE waiting.kind = of_kind))[1]
        INTO queued, job
        FROM (
            SELECT jobs.id, jobs.kind
            FROM outbox.jobs
            WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
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
            -- A claim that is about to take it is waited for: then it runs, and does not
            -- do. Only the next look sees that, so all is asked again.
            SELECT jobs.status = 'blocked' INTO moves_on
            FROM outbox.jobs
            WHERE jobs.id = job
              AND jobs.status IN ('pending', 'blocked', 'retrying')
            FOR SHARE;
            CONTINUE WHEN moves_on IS NULL;
            verdict := 'coalesced';
            IF notify THEN
                PERFORM pg_notify('outbox_jobs', '');
            END IF;
            RETURN;
        ELSIF when_full <> 'replace-oldest' THEN
            verdict := 'rejected';
            job := NULL;
            RETURN;
        END IF;
        -- A claim that is about to take it is waited for: then it runs, and there is
        -- room. Only this look sees that, so all is asked again.
        WITH oldest AS MATERIALIZED (
            SELECT waiting.id
            FROM (
                (
                    SELECT jobs.id, jobs.created_at
                    FROM outbox.jobs
                    WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
                      AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
                      AND jobs.status IN ('pending', 'blocked', 'retrying')
                      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
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
                    ORDER BY jobs.line_position, jobs.id
                    LIMIT 1
                )
            ) AS waiting
            ORDER BY waiting.created_at, waiting.id
            LIMIT 1
        ), gone AS (
            DELETE FROM outbox.jobs
            WHERE jobs.id = (SELECT oldest.id FROM oldest)
              AND jobs.status IN ('pending', 'blocked', 'retrying')
            RETURNING jobs.*
        )
        INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt,
            max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff,
            last_error_code, last_error_message, deadline, parent_id)
        SELECT gone.id, gone.tenant_id, gone.run_at, gone.created_at, gone.started_at, gone.epoch + 1, 'skipped', gone.status, gone.attempt,
            gone.max_attempts, gone.lost_leases, gone.priority, gone.queue, gone.kind, gone.payload, gone.content_type, gone.key,
            gone.headers, gone.timeout, gone.backoff, gone.last_error_code, gone.last_error_message, gone.deadline, gone.parent_id
        FROM gone
        RETURNING id INTO job;
        IF job IS NOT NULL THEN
            verdict := 'replaced';
            moves_on := true;
            RETURN;
        END IF;
    END LOOP;
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- unblock_key takes a key up again: the dead letters that hold it up are retried
-- with all their attempts, at their old places, and the others follow. It returns
-- how many it retried; NULL if no open job bears the key and nothing is known of it.
-- It is in the audit: actor, request_id and reason are what stands there; see record_act.
CREATE FUNCTION outbox.unblock_key(of_tenant uuid, of_queue text, of_key text,
    actor text DEFAULT NULL, request_id text DEFAULT NULL, reason text DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    dead  uuid[];
    known boolean;
    stood outbox.keys;
    was   jsonb;
    instant CONSTANT text := 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'; -- whatever the session's time zone
BEGIN
    SELECT * INTO stood
    FROM outbox.keys
    WHERE keys.tenant_id = of_tenant AND keys.queue = of_queue AND keys.key = of_key;
    known := FOUND;

    -- Jobs before their key: these are waited for.
    SELECT array_agg(held.id) INTO dead
    FROM (
        SELECT jobs.id
        FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.status IN ('failed', 'dead')
          AND ((jobs.ordered AND jobs.on_death IS DISTINCT FROM 'skip') OR jobs.id = stood.parked_for)
          -- One past its deadline would only expire: it has to be dismissed.
          AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
        ORDER BY jobs.id
        FOR UPDATE
    ) AS held;
    -- Before its first claim a key has no row. Each part but the last has an index.
    IF NOT known AND dead IS NULL AND NOT EXISTS (
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status <> 'running'
        UNION ALL
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.key IS NOT NULL AND jobs.status = 'running'
        UNION ALL
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered AND jobs.status <> 'created'
          AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
        UNION ALL
        SELECT FROM outbox.jobs
        WHERE jobs.tenant_id = of_tenant AND jobs.queue = of_queue AND jobs.key = of_key
          AND jobs.ordered AND (jobs.status = 'created' OR jobs.status IN ('failed', 'dead') AND jobs.on_death = 'skip')
    ) THEN
        RETURN NULL;
    END IF;
    UPDATE outbox.keys
    SET parked_at = NULL, park_at = NULL, parked_for = NULL
    WHERE keys.tenant_id = of_tenant AND keys.queue = of_queue AND keys.key = of_key;
    UPDATE outbox.jobs
    SET status = 'pending', epoch = jobs.epoch + 1, attempt = 0, lost_leases = 0, run_at = least(jobs.run_at, statement_timestamp()),
        unavailable_since = NULL, failed_at = NULL, error_fingerprint = NULL
    WHERE jobs.id = ANY (dead);
    PERFORM outbox.promote_keys(ARRAY[of_tenant], ARRAY[of_queue], ARRAY[of_key], ARRAY[1000]);
    PERFORM pg_notify('outbox_jobs', '');
    was := jsonb_build_object('parked_at', to_char(stood.parked_at AT TIME ZONE 'UTC', instant))
        || jsonb_strip_nulls(jsonb_build_object('park_at', to_char(stood.park_at AT TIME ZONE 'UTC', instant), 'parked_for', stood.parked_for));
    PERFORM outbox.record_act('key.unblock', of_tenant, NULL, of_queue, of_key, was,
        jsonb_build_object('parked_at', NULL, 'retried', coalesce(cardinality(dead), 0)), actor, request_id, reason);
    RETURN coalesce(cardinality(dead), 0);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- forget_keys takes the rows of keys away that no open job needs: a claim makes
-- them again. A row is looked at after it was locked, like everywhere.
CREATE FUNCTION outbox.forget_keys(tenant_ids uuid[], queue_names text[], key_names text[]) RETURNS integer
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
        JOIN outbox.keys ON keys.tenant_id = ANY (ARRAY[input.tenant_id]) AND keys.queue = input.queue COLLATE "C" AND keys.key = input.key COLLATE "C"
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
          OFFSET 0) -- asked key by key; see queries/settle.sql
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
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION outbox.unblock_key(uuid, text, text, text, text, text);
DROP FUNCTION outbox.make_room(uuid, text, text, text, integer, text, boolean);
DROP FUNCTION outbox.forget_keys(uuid[], text[], text[]);
DROP FUNCTION outbox.promote_keys(uuid[], text[], text[], integer[], boolean);
DROP FUNCTION outbox.claim_keyed(text, interval, smallint[], timestamptz[], uuid[], text, text[], uuid[], integer, integer);
DROP TRIGGER jobs_take_position ON outbox.jobs;
DROP FUNCTION outbox.take_position();
DROP SEQUENCE outbox.commit_order;
DROP INDEX outbox.jobs_line_idx;
DROP INDEX outbox.jobs_key_idx;
DROP INDEX outbox.jobs_slot_idx;
DROP INDEX outbox.jobs_keyed_due_idx;
DROP TABLE outbox.keys;
