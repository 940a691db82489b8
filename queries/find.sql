-- name: FindOpen :many
-- FindOpen returns the open jobs among @ids without payloads. @tenants has for each id the tenant to which the job must
-- belong; NULL means any. Every id is looked up on its own, whatever the planner assumes about the table.
SELECT {{open "j"}}, coalesce(j.deadline <= statement_timestamp(), false)::boolean AS late
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
SELECT {{shut "h"}}
FROM (SELECT unnest(@ids::uuid[]) AS id, unnest(@tenants::uuid[]) AS tenant_id) AS wanted
CROSS JOIN LATERAL (
    SELECT *
    FROM outbox.history
    WHERE history.id = wanted.id
      AND (wanted.tenant_id IS NULL OR history.tenant_id = wanted.tenant_id)
    LIMIT 1
) AS h
LIMIT 1000;
