-- store_job_event stores an event of a streamed job. more is the fields, each with a comma
-- before it, that not every event has; large is one more, for which size stands if the event
-- would be larger than the log takes. The id is made of what the event is about, so that
-- repeats are known by it; if a failover has lost the event and something else has happened to
-- the job since, that has another one. Both triggers and reports write events by it.
CREATE OR REPLACE FUNCTION outbox.store_job_event(
    job_id uuid, of_tenant uuid, event text, number integer, previous text, status outbox.job_status, epoch bigint, attempt integer,
    queue text, kind text, key text, happened timestamptz, headers jsonb, more text, large text DEFAULT '', size text DEFAULT ''
) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    fields text := concat('{"job":"', job_id, '","tenant":"', of_tenant, '","event":"', event, '","n":', number, ',"previous":"' || previous || '"',
        ',"state":"', status, '","epoch":', epoch, ',"attempt":', attempt, ',"queue":', to_json(queue), ',"kind":', to_json(kind),
        ',"key":' || to_json(key), ',"at":', to_json(happened), more);
    body   bytea := convert_to(concat(fields, large, '}'), 'UTF8');
    silent boolean;
BEGIN
    IF octet_length(body) > 4194304 THEN
        body := convert_to(concat(fields, size, '}'), 'UTF8');
    END IF;
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    VALUES (
        overlay(overlay(encode(substr(sha256(uuid_send(job_id) || int4send(number) || int8send(epoch) || textsend(event)), 1, 16), 'hex')
            PLACING '8' FROM 13) PLACING '8' FROM 17)::uuid, -- RFC 9562, version 8
        of_tenant, 'job.' || event, job_id, 'application/json',
        body,
        CASE WHEN headers IS NOT NULL THEN nullif(jsonb_strip_nulls(jsonb_build_object(
            'traceparent', headers -> 'traceparent', 'tracestate', headers -> 'tracestate',
            'correlation-id', headers -> 'correlation-id')), '{}') END);
    silent := pg_notify('outbox_events', '') IS NULL;
END
$$;
