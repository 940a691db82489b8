-- outbox.enqueue: any language, or a trigger, can be a producer.

-- +goose Up
-- +goose StatementBegin
-- uuid_v7 makes a time-ordered id: 48 bits of milliseconds, then random bits.
CREATE FUNCTION outbox.uuid_v7() RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_bit(set_bit(
            overlay(uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
                FROM 1 FOR 6),
            52, 1), 53, 1), 'hex')::uuid
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- enqueue stores a job in the current transaction and returns its id. With an
-- idempotency_key that was used before (same tenant and kind) it changes nothing
-- and returns the first job's id. notify => false leaves the wake-up to the
-- dispatchers' poll.
CREATE FUNCTION outbox.enqueue(
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
    notify          boolean     DEFAULT true
) RETURNS uuid
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    new_id   uuid := outbox.uuid_v7();
    first_id uuid;
BEGIN
    IF kind IS NULL OR kind !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}$' THEN
        RAISE EXCEPTION 'outbox.enqueue: kind % must be 1 to 128 letters, digits, or _ . : / -, starting with a letter or digit', quote_nullable(kind)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF queue IS NULL OR queue !~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}$' THEN
        RAISE EXCEPTION 'outbox.enqueue: queue % must be 1 to 128 letters, digits, or _ . : / -, starting with a letter or digit', quote_nullable(queue)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF payload IS NULL THEN
        RAISE EXCEPTION 'outbox.enqueue: payload is NULL; pass ''null''::jsonb for a JSON null'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF run_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE EXCEPTION 'outbox.enqueue: run_at and delay exclude each other'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF idempotency_key IS NOT NULL THEN
        LOOP
            -- The insert waits for a concurrent producer of the same key; the look-up
            -- is a statement of its own, so that it sees what that one committed.
            INSERT INTO outbox.idempotency_keys AS k (tenant_id, kind, key, job_id)
            VALUES (tenant_id, kind, idempotency_key, new_id)
            ON CONFLICT DO NOTHING;
            EXIT WHEN FOUND;
            SELECT k.job_id INTO first_id FROM outbox.idempotency_keys AS k
            WHERE k.tenant_id = enqueue.tenant_id AND k.kind = enqueue.kind AND k.key = enqueue.idempotency_key;
            IF FOUND THEN
                RETURN first_id;
            END IF;
        END LOOP;
    END IF;

    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, run_at, max_attempts, timeout, key, payload, headers)
    VALUES (new_id, tenant_id, queue, kind, priority::smallint,
            coalesce(run_at, statement_timestamp() + coalesce(delay, interval '0')),
            max_attempts, timeout, key, convert_to(payload::text, 'UTF8'), headers);
    IF notify THEN
        PERFORM pg_notify('outbox_jobs', '');
    END IF;
    RETURN new_id;
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION outbox.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, interval, text, text, jsonb, uuid, boolean);
DROP FUNCTION outbox.uuid_v7();
