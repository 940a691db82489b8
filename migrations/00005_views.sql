-- Views for people with psql. JSON payloads are shown as json, which takes every
-- escape that JSON allows (jsonb would refuse \u0000); others as their size.

-- +goose Up
CREATE VIEW outbox.open_jobs WITH (security_invoker = true) AS
SELECT id, queue, kind, status, priority, attempt, max_attempts, lost_leases, run_at, created_at, started_at,
       lease_owner, lease_expires_at, key, last_error_code, last_error_message,
       CASE WHEN content_type = 'application/json' THEN convert_from(payload, 'UTF8')::json END AS payload,
       octet_length(payload) AS payload_bytes, content_type, headers, epoch, tenant_id
FROM outbox.jobs;

CREATE VIEW outbox.closed_jobs WITH (security_invoker = true) AS
SELECT id, queue, kind, status, priority, attempt, max_attempts, lost_leases, run_at, created_at, started_at, finished_at,
       finished_at - started_at AS took, worker, key, last_error_code, last_error_message,
       CASE WHEN content_type = 'application/json' THEN convert_from(payload, 'UTF8')::json END AS payload,
       octet_length(payload) AS payload_bytes, content_type, convert_from(result, 'UTF8') AS result, headers, epoch, tenant_id
FROM outbox.history;

CREATE VIEW outbox.dead_letters WITH (security_invoker = true) AS
SELECT id, queue, kind, status, attempt, lost_leases, last_error_code, last_error_message, created_at, started_at, tenant_id
FROM outbox.jobs
WHERE status IN ('failed', 'dead');

-- +goose Down
DROP VIEW outbox.dead_letters;
DROP VIEW outbox.closed_jobs;
DROP VIEW outbox.open_jobs;
