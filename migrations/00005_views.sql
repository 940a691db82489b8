-- Views for people with psql. JSON payloads are shown as json, which takes every
-- escape that JSON allows (jsonb would refuse \u0000); others as their size.

-- +goose Up
-- +goose StatementBegin
-- as_json is the bytes as JSON, or NULL if they are none: one odd row must not
-- make the whole view unreadable.
CREATE FUNCTION outbox.as_json(bytes bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::json;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
-- +goose StatementEnd

CREATE VIEW outbox.open_jobs WITH (security_invoker = true) AS
SELECT id, queue, kind, status, priority, attempt, max_attempts, lost_leases, run_at, created_at, started_at,
       lease_owner, lease_expires_at, key, last_error_code, last_error_message,
       CASE WHEN content_type = 'application/json' THEN outbox.as_json(payload) END AS payload,
       octet_length(payload) AS payload_bytes, content_type, headers, epoch, tenant_id, deadline, cancel_requested_at, parent_id
FROM outbox.jobs;

CREATE VIEW outbox.closed_jobs WITH (security_invoker = true) AS
SELECT id, queue, kind, status, priority, attempt, max_attempts, lost_leases, run_at, created_at, started_at, finished_at,
       finished_at - started_at AS took, worker, key, last_error_code, last_error_message,
       CASE WHEN content_type = 'application/json' THEN outbox.as_json(payload) END AS payload,
       octet_length(payload) AS payload_bytes, content_type, coalesce(outbox.as_json(result)::text, encode(result, 'escape')) AS result, headers, epoch, tenant_id, deadline, cancel_requested_at, parent_id
FROM outbox.history;

CREATE VIEW outbox.dead_letters WITH (security_invoker = true) AS
SELECT id, queue, kind, status, attempt, lost_leases, last_error_code, last_error_message, created_at, started_at, tenant_id,
       failed_at, error_fingerprint
FROM outbox.jobs
WHERE status IN ('failed', 'dead');

-- +goose Down
DROP VIEW outbox.dead_letters;
DROP VIEW outbox.closed_jobs;
DROP VIEW outbox.open_jobs;
DROP FUNCTION outbox.as_json(bytea);
