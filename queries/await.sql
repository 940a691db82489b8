-- name: FindEnded :many
-- FindEnded returns which of the jobs have ended, dead letters included, and which are nowhere: not yet committed,
-- rolled back, or trimmed; those have no status. It returns nothing for a job that is open. One snapshot sees both
-- tables, so that a job which closes meanwhile is in one of them. The history, which has a partition for each day, is
-- read only for jobs that are not open any more.
WITH asked AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id
), open AS MATERIALIZED (
    SELECT asked.id, job.status, job.last_error_code, job.last_error_message
    FROM asked
    LEFT JOIN LATERAL (
        SELECT jobs.status, jobs.last_error_code, jobs.last_error_message
        FROM outbox.jobs
        WHERE jobs.id = asked.id
        LIMIT 1 -- forces a loop over the index, whatever the statistics are
    ) AS job ON true
)
SELECT open.id::uuid AS id,
       coalesce(open.status::text, closed.status::text, '')::text AS status,
       closed.tenant_id::uuid AS tenant_id, -- with the id it binds a sealed result
       closed.result::bytea AS result,
       coalesce(open.last_error_code, closed.last_error_code, '')::text AS error_code,
       coalesce(open.last_error_message, closed.last_error_message, '')::text AS error_message
FROM open
LEFT JOIN LATERAL (
    SELECT history.status, history.tenant_id, history.result, history.last_error_code, history.last_error_message
    FROM outbox.history
    WHERE history.id = open.id
      AND open.status IS NULL
    LIMIT 1
) AS closed ON true
WHERE open.status IS NULL
   OR open.status IN ('failed', 'dead')
LIMIT 100000;

-- name: FindOutcome :many
-- FindOutcome returns a job's status, and its result if it has ended.
SELECT status::text AS status, tenant_id, NULL::bytea AS result,
       coalesce(last_error_code, '')::text AS error_code, coalesce(last_error_message, '')::text AS error_message
FROM outbox.jobs
WHERE jobs.id = @id
UNION ALL
SELECT status::text, tenant_id, result, coalesce(last_error_code, '')::text, coalesce(last_error_message, '')::text
FROM outbox.history
WHERE history.id = @id
LIMIT 1;
