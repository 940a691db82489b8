CREATE OR REPLACE VIEW outbox.closed_jobs WITH (security_invoker = true) AS
SELECT id, queue, kind, status, priority, attempt, max_attempts, lost_leases, run_at, created_at, started_at, finished_at,
       finished_at - started_at AS took, worker, key, last_error_code, last_error_message,
       CASE WHEN content_type = 'application/json' THEN outbox.as_json(payload) END AS payload,
       octet_length(payload) AS payload_bytes, content_type,
       coalesce(outbox.as_json(result)::text, encode(result, 'escape')) AS result, headers, epoch, tenant_id, deadline,
       cancel_requested_at, parent_id, streamed IS NOT NULL AS streamed
FROM outbox.history;
