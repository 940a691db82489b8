-- describe_schedule returns a schedule in the form of the audit: its settings, without those that are not set. The
-- payload and the values of its headers, which not every reader of the audit may see, appear as hashes, with the length
-- of the payload and the names of the headers.
CREATE OR REPLACE FUNCTION outbox.describe_schedule(schedule outbox.schedules) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN jsonb_strip_nulls(to_jsonb(schedule)
    - '{tenant_id,name,generation,payload,since,next_at,last_at,paused_at,created_at,updated_at}'::text[]
    || jsonb_build_object('payload_bytes', octet_length(schedule.payload), 'payload_sha256', encode(sha256(schedule.payload), 'hex'),
        'headers', CASE WHEN jsonb_typeof(schedule.headers) = 'object'
            THEN (SELECT jsonb_agg(name) FROM jsonb_object_keys(schedule.headers) AS name) END,
        'headers_sha256', encode(sha256(convert_to(schedule.headers::text, 'UTF8')), 'hex')));
