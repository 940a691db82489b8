-- job_event_fields returns the body of an event of a streamed job, without its end: the fields that every event has,
-- and more, each with a comma before it. Every byte is stored for each change of a job, so the root tenant is omitted.
-- The function is one expression, which the server inlines into the calling statement.
CREATE OR REPLACE FUNCTION outbox.job_event_fields(
    job_id uuid, of_tenant uuid, event text, number integer, previous text, status outbox.job_status, epoch bigint, attempt integer,
    queue text, kind text, key text, happened timestamptz, more text
) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN concat('{"job":"', job_id, '"', CASE WHEN of_tenant <> '00000000-0000-0000-0000-000000000001' THEN ',"tenant":"' || of_tenant || '"' END,
    ',"event":"', event, '","n":', number, ',"previous":"' || previous || '"', ',"state":"', status, '","epoch":', epoch, ',"attempt":', attempt,
    ',"queue":', to_json(queue), ',"kind":', to_json(kind), ',"key":' || to_json(key), ',"at":', outbox.event_time(happened), more);
