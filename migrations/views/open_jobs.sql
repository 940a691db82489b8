-- open_jobs, closed_jobs and dead_letters are for people with psql. JSON payloads are shown
-- as json, which takes every escape that JSON allows (jsonb would refuse \u0000); others as
-- their size.
CREATE OR REPLACE VIEW outbox.open_jobs WITH (security_invoker = true) AS
SELECT id, queue, kind, status, priority, attempt, max_attempts, lost_leases, run_at, created_at, started_at,
       lease_owner, lease_expires_at, key, last_error_code, last_error_message,
       CASE WHEN content_type = 'application/json' THEN outbox.as_json(payload) END AS payload,
       octet_length(payload) AS payload_bytes, content_type, headers, epoch, tenant_id, deadline, cancel_requested_at,
       parent_id, streamed IS NOT NULL AS streamed
FROM outbox.jobs;
