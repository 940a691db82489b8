-- store_job_event stores an event of a streamed job. more has the fields that not every event has, each with a comma
-- before it. large is one more field, which is replaced by size if the event would be larger than the log accepts.
-- Triggers and reports write events with this function; statements that store many events at once have their own INSERT
-- (queries/claim.sql, queries/place.sql).
CREATE OR REPLACE FUNCTION outbox.store_job_event(
    job_id uuid, of_tenant uuid, event text, number integer, previous text, status outbox.job_status, epoch bigint, attempt integer,
    queue text, kind text, key text, happened timestamptz, headers jsonb, more text, large text DEFAULT '', size text DEFAULT ''
) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    fields text := outbox.job_event_fields(job_id, of_tenant, event, number, previous, status, epoch, attempt, queue, kind, key, happened, more);
    body   bytea := convert_to(concat(fields, large, '}'), 'UTF8');
    silent boolean;
BEGIN
    IF octet_length(body) > 4194304 THEN
        body := convert_to(concat(fields, size, '}'), 'UTF8');
    END IF;
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    VALUES (outbox.job_event_id(job_id, number, epoch, event), of_tenant, 'job.' || event, job_id, 'application/json', body,
        outbox.job_event_headers(headers));
    -- PL/pgSQL evaluates the expression of an assignment itself, and would run PERFORM as a query. IS NULL is there
    -- because a variable cannot have the type void.
    silent := pg_notify('outbox_events', '') IS NULL;
END
$$;
