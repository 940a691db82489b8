CREATE OR REPLACE VIEW outbox.dead_letters WITH (security_invoker = true) AS
SELECT id, queue, kind, status, attempt, lost_leases, last_error_code, last_error_message, created_at, started_at, tenant_id,
       failed_at, error_fingerprint
FROM outbox.jobs
WHERE status IN ('failed', 'dead');
