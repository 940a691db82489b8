-- job_event_id returns the id of an event of a streamed job. It is derived from what the event is about, so that
-- repeats have the same id; if a failover has lost the event and something else has happened to the job since, that
-- event has another id. It is a version 8 UUID of RFC 9562.
CREATE OR REPLACE FUNCTION outbox.job_event_id(job_id uuid, number integer, epoch bigint, event text) RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
RETURN overlay(overlay(encode(substr(sha256(uuid_send(job_id) || int4send(number) || int8send(epoch) || textsend(event)), 1, 16), 'hex')
    PLACING '8' FROM 13) PLACING '8' FROM 17)::uuid;
