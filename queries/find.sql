-- name: FindOpen :many
-- FindOpen returns the open jobs among @ids without payloads. Each id has the
-- tenant whose job it must be beside it in @tenants; NULL is any. Every id is looked
-- up by itself, whatever the planner believes of the table.
SELECT j.id, j.tenant_id, j.queue, j.kind, j.status::text AS status, j.priority, j.attempt, j.max_attempts, j.lost_leases, j.epoch,
       coalesce(j.key, '')::text AS key, j.run_at, j.created_at, j.started_at, j.lease_expires_at, coalesce(j.lease_owner, '')::text AS worker,
       j.timeout, j.backoff, j.content_type, octet_length(j.payload) AS payload_bytes,
       coalesce(j.last_error_code, '')::text AS error_code, coalesce(j.last_error_message, '')::text AS error_message,
       j.deadline, j.cancel_requested_at, j.parent_id, coalesce(j.deadline <= statement_timestamp(), false)::boolean AS late
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@tenants::uuid[]) AS tenant_id) AS wanted
CROSS JOIN LATERAL (
    SELECT *
    FROM outbox.jobs
    WHERE jobs.id = wanted.id
      AND (wanted.tenant_id IS NULL OR jobs.tenant_id = wanted.tenant_id)
    LIMIT 1
) AS j
LIMIT 1000;

-- name: FindClosed :many
-- FindClosed is FindOpen for the history.
SELECT h.id, h.tenant_id, h.queue, h.kind, h.status::text AS status, h.priority, h.attempt, h.max_attempts, h.lost_leases, h.epoch,
       coalesce(h.key, '')::text AS key, h.run_at, h.created_at, h.started_at, h.finished_at, coalesce(h.worker, '')::text AS worker,
       h.timeout, h.backoff, h.content_type, octet_length(h.payload) AS payload_bytes,
       coalesce(h.last_error_code, '')::text AS error_code, coalesce(h.last_error_message, '')::text AS error_message,
       h.deadline, h.cancel_requested_at, h.parent_id
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@tenants::uuid[]) AS tenant_id) AS wanted
CROSS JOIN LATERAL (
    SELECT *
    FROM outbox.history
    WHERE history.id = wanted.id
      AND (wanted.tenant_id IS NULL OR history.tenant_id = wanted.tenant_id)
    LIMIT 1
) AS h
LIMIT 1000;
