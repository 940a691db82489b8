-- enqueue stores a job in the current transaction and returns its id. If the idempotency_key was used before (by the
-- same tenant and kind), it changes nothing and returns the first job's id. notify => false leaves the wake-up to the
-- dispatchers' poll. A job that is not done at its deadline expires; a held job waits for outbox.release. If max_queued
-- jobs of the key wait already, when_full decides: by default enqueue stores nothing and returns NULL; coalesce returns
-- the id of the newest waiting job of the kind; replace-oldest closes the one of the kind that has waited longest.
-- backoff lists how long the job waits after its first failed attempt, its second one and so on; the last wait repeats.
-- streamed stores each change of the job as an event: see stream_job.
CREATE OR REPLACE FUNCTION outbox.enqueue(
    kind            text,
    payload         jsonb       DEFAULT '{}',
    queue           text        DEFAULT 'default',
    priority        integer     DEFAULT 0,
    run_at          timestamptz DEFAULT NULL,
    delay           interval    DEFAULT NULL,
    max_attempts    integer     DEFAULT 25,
    timeout         interval    DEFAULT NULL,
    key             text        DEFAULT NULL,
    idempotency_key text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    tenant_id       uuid        DEFAULT '00000000-0000-0000-0000-000000000001',
    notify          boolean     DEFAULT true,
    deadline        timestamptz DEFAULT NULL,
    hold            boolean     DEFAULT false,
    max_active      integer     DEFAULT NULL,
    ordered         boolean     DEFAULT false,
    sequence        bigint      DEFAULT NULL,
    on_death        text        DEFAULT NULL,
    park_after      interval    DEFAULT NULL,
    on_lapse        text        DEFAULT NULL,
    max_queued      integer     DEFAULT NULL,
    when_full       text        DEFAULT NULL,
    watched         boolean     DEFAULT false,
    backoff         interval[]  DEFAULT NULL,
    streamed        boolean     DEFAULT false
) RETURNS uuid
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    name_rule CONSTANT text := '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}$';
    bytes     bytea := convert_to(payload::text, 'UTF8');
    mistakes  text;
    new_id    uuid := outbox.uuid_v7();
    first_id  uuid;
    room      record;
BEGIN
    -- The rules of package outbox: every mistake is reported at once.
    mistakes := concat_ws('; ',
        CASE WHEN (kind ~ name_rule) IS NOT TRUE THEN
            format('kind %s must be 1 to 128 letters, digits, or _ . : / -, first a letter or digit', quote_nullable(left(kind, 200))) END,
        CASE WHEN kind LIKE 'relay:%' THEN
            format('kind is %s: kinds that begin with relay: are those of messages that a sink has refused', quote_literal(left(kind, 200))) END,
        CASE WHEN (queue ~ name_rule) IS NOT TRUE THEN
            format('queue %s must be 1 to 128 letters, digits, or _ . : / -, first a letter or digit', quote_nullable(left(queue, 200))) END,
        CASE WHEN queue LIKE 'relay:%' THEN
            format('queue is %s: queues that begin with relay: are those of messages that a sink has refused', quote_literal(left(queue, 200))) END,
        CASE WHEN payload IS NULL THEN 'payload is NULL; pass ''null''::jsonb for a JSON null' END,
        CASE WHEN octet_length(bytes) > 4194304 THEN
            format('payload is %s bytes, want at most 4194304; store large data elsewhere and enqueue a reference', octet_length(bytes)) END,
        CASE WHEN (priority BETWEEN -32768 AND 32767) IS NOT TRUE THEN
            format('priority is %s, want -32768 to 32767', coalesce(priority::text, 'NULL')) END,
        CASE WHEN run_at IS NOT NULL AND delay IS NOT NULL THEN 'run_at and delay exclude each other' END,
        CASE WHEN run_at NOT BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN
            format('run_at is %s, want the year 1970 to 9999', run_at) END,
        CASE WHEN delay NOT BETWEEN '0' AND '36500 days' THEN format('delay is %s, want 0 to 100 years', delay) END,
        CASE WHEN (max_attempts BETWEEN 1 AND 32767) IS NOT TRUE THEN
            format('max_attempts is %s, want 1 to 32767', coalesce(max_attempts::text, 'NULL')) END,
        CASE WHEN timeout NOT BETWEEN '0' AND '36500 days' THEN format('timeout is %s, want 0 to 100 years', timeout) END,
        CASE WHEN backoff IS NOT NULL AND (interval '0' <= ALL (backoff) AND interval '36500 days' >= ALL (backoff)
                AND coalesce(array_ndims(backoff), 1) = 1 AND cardinality(backoff) <= 64) IS NOT TRUE THEN
            format('backoff is %s, want at most 64 waits of 0 to 100 years', backoff) END,
        CASE WHEN deadline NOT BETWEEN '1970-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00' THEN
            format('deadline is %s, want the year 1970 to 9999', deadline) END,
        CASE WHEN deadline <= run_at THEN 'deadline is not after run_at: the job could never start' END,
        CASE WHEN hold IS NULL THEN 'hold is NULL' END,
        CASE WHEN octet_length(key) > 512 THEN format('key is %s bytes long, want at most 512', octet_length(key)) END,
        CASE WHEN octet_length(idempotency_key) > 512 THEN
            format('idempotency_key is %s bytes long, want at most 512', octet_length(idempotency_key)) END,
        CASE WHEN jsonb_typeof(headers) <> 'object' OR jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string")', '{}', true) THEN
            'headers must be a JSON object of strings' END,
        CASE WHEN jsonb_typeof(headers) = 'object' AND headers ? '' THEN 'headers have one whose name is empty' END,
        CASE WHEN octet_length(headers::text) > 65536 THEN
            format('headers are %s bytes as JSON, want at most 65536', octet_length(headers::text)) END,
        CASE WHEN tenant_id IS NULL THEN 'tenant_id is NULL' END,
        CASE WHEN max_active NOT BETWEEN 1 AND 1000 THEN format('max_active is %s, want 1 to 1000', max_active) END,
        CASE WHEN ordered AND max_active > 1 THEN 'ordered jobs cannot run at once; leave max_active out' END,
        CASE WHEN sequence < 1 THEN format('sequence is %s, want 1 or more', sequence) END,
        CASE WHEN on_death NOT IN ('skip', 'park') THEN format('on_death is %s, want skip or park', quote_literal(on_death)) END,
        CASE WHEN on_lapse NOT IN ('fail-stale', 'block') THEN format('on_lapse is %s, want fail-stale or block', quote_literal(on_lapse)) END,
        CASE WHEN extract(epoch FROM park_after) NOT BETWEEN 0 AND extract(epoch FROM interval '100 years') THEN format('park_after is %s, want 0 to 100 years', park_after) END,
        CASE WHEN park_after IS NOT NULL AND on_death IS DISTINCT FROM 'park' THEN 'park_after is set, but on_death is not park' END,
        CASE WHEN ordered IS NOT TRUE AND num_nonnulls(sequence, on_death) > 0 THEN 'sequence and on_death are about ordered jobs' END,
        CASE WHEN max_queued NOT BETWEEN 1 AND 100000 THEN format('max_queued is %s, want 1 to 100000', max_queued) END,
        CASE WHEN when_full NOT IN ('coalesce', 'replace-oldest')
            THEN format('when_full is %s, want coalesce or replace-oldest', quote_literal(when_full)) END,
        CASE WHEN when_full IS NOT NULL AND max_queued IS NULL THEN 'when_full is set, but max_queued is not' END,
        CASE WHEN max_queued IS NOT NULL AND idempotency_key <> ''
            THEN 'idempotency_key and max_queued exclude each other: which of them is to answer a repeat?' END,
        CASE WHEN max_queued IS NOT NULL AND current_setting('transaction_isolation') <> 'read committed' THEN
            'max_queued needs a READ COMMITTED transaction: another''s snapshot is too old to count' END,
        CASE WHEN coalesce(key, '') = '' AND (ordered OR num_nonnulls(max_active, on_lapse, max_queued) > 0) THEN
            'max_active, ordered, on_lapse and max_queued are rules of jobs with a key' END);
    IF mistakes <> '' THEN
        RAISE EXCEPTION 'outbox.enqueue: %', mistakes USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF idempotency_key <> '' THEN -- neither '' nor NULL is a key
        LOOP
            -- The insert waits for a concurrent producer of the same key; the lookup is a statement of its own, so that
            -- it sees what that producer committed.
            INSERT INTO outbox.idempotency_keys AS k (tenant_id, kind, key, job_id, held)
            VALUES (tenant_id, kind, idempotency_key, new_id, nullif(hold, false))
            ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT k.job_id INTO first_id FROM outbox.idempotency_keys AS k
            WHERE k.tenant_id = enqueue.tenant_id AND k.kind = enqueue.kind AND k.key = enqueue.idempotency_key;
            IF FOUND THEN
                RETURN first_id;
            END IF;
        END LOOP;
    END IF;

    IF max_queued IS NOT NULL THEN
        SELECT m.verdict, m.job, m.moves_on INTO room
        FROM outbox.make_room(tenant_id, queue, key, kind, max_queued, coalesce(when_full, ''), notify) AS m;
        IF room.moves_on THEN
            INSERT INTO outbox.freed_keys (tenant_id, queue, key) VALUES (tenant_id, queue, key);
        END IF;
        IF room.verdict = 'rejected' THEN
            RETURN NULL;
        ELSIF room.verdict = 'coalesced' THEN
            RETURN room.job;
        END IF;
    END IF;

    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, run_at, max_attempts, timeout, backoff, key, payload, headers, deadline, status,
            max_active, ordered, line_position, on_death, park_after, on_lapse, watched, streamed)
    VALUES (new_id, tenant_id, queue, kind, priority::smallint,
            coalesce(run_at, statement_timestamp() + coalesce(delay, interval '0')),
            max_attempts, timeout, nullif(backoff, '{}'), nullif(key, ''), bytes, headers, deadline,
            CASE WHEN hold THEN 'created' ELSE 'pending' END::outbox.job_status,
            nullif(max_active, 1)::smallint, nullif(ordered, false), sequence, on_death, park_after, on_lapse, nullif(watched, false),
            CASE WHEN streamed THEN 1 END);
    IF notify THEN
        PERFORM pg_notify('outbox_jobs', '');
    END IF;
    RETURN new_id;
END
$$;
