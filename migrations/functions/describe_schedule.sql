-- describe_schedule is how a schedule stands in the audit: what it is made of, without what is not set. Of its payload
-- and its headers' values, which not everybody may read, there are hashes, of the payload the length and of the headers
-- the names.
CREATE OR REPLACE FUNCTION outbox.describe_schedule(schedule outbox.schedules) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN jsonb_strip_nulls(to_jsonb(schedule)
    - '{tenant_id,name,generation,payload,since,next_at,last_at,paused_at,created_at,updated_at}'::text[]
    || jsonb_build_object('payload_bytes', octet_length(schedule.payload), 'payload_sha256', encode(sha256(schedule.payload), 'hex'),
        'headers', CASE WHEN jsonb_typeof(schedule.headers) = 'object' THEN (SELECT jsonb_agg(name) FROM jsonb_object_keys(schedule.headers) AS name) END,
        'headers_sha256', encode(sha256(convert_to(schedule.headers::text, 'UTF8')), 'hex')));
