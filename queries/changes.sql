-- name: FindPosition :one
-- FindPosition is where a reader of changes begins who wants what comes from now on:
-- see ListChanges.
SELECT pg_snapshot_xmin(pg_current_snapshot())::text AS horizon, pg_snapshot_xmax(pg_current_snapshot())::text AS next, statement_timestamp()::timestamptz AS at;

-- name: ListChanges :many
-- ListChanges returns the jobs that may have changed since a position, as they are
-- now, each at most once: it is one snapshot, and in one a job is open or closed.
--
-- The position is a transaction id, @horizon: when it was taken, every transaction
-- below had ended. What any of them wrote was visible then, so what was not
-- visible then has a row version whose xmin is not below. That holds for transactions that
-- commit late, and for subtransactions, whose ids are above their parent's. The
-- rows of transactions above that had committed already are returned again.
--
-- An index cannot have xmin. The open jobs are read from one end to the other. In the
-- history @since, which no row in question has finished before, leaves the newest
-- pages. It also leaves out jobs that have run for longer: an extended lease is a
-- new version of the row, and no change.
--
-- The first columns are the same in every row: the next position. Without a change
-- there is one row with NULL as its id.
SELECT pg_snapshot_xmin(seen.snapshot)::text AS horizon, pg_snapshot_xmax(seen.snapshot)::text AS next, statement_timestamp()::timestamptz AS at,
       changed.id, changed.tenant_id, coalesce(changed.queue, '')::text AS queue, coalesce(changed.kind, '')::text AS kind,
       coalesce(changed.status::text, '')::text AS status, coalesce(changed.epoch, 0)::bigint AS epoch, coalesce(changed.attempt, 0)::integer AS attempt,
       changed.finished_at, coalesce(changed.error_code, '')::text AS error_code
FROM (SELECT pg_current_snapshot() AS snapshot) AS seen
LEFT JOIN (
    (SELECT id, tenant_id, queue, kind, status, epoch, attempt, NULL::timestamptz AS finished_at, last_error_code AS error_code
     FROM outbox.jobs
     WHERE age(jobs.xmin) <= (SELECT age(CAST(CAST(@horizon::text AS xid8) AS xid)))
       AND (status <> 'running' OR started_at >= @since::timestamptz)
       AND (sqlc.narg(tenant)::uuid IS NULL OR tenant_id = sqlc.narg(tenant)::uuid)
     LIMIT @max_rows::integer)
    UNION ALL
    (SELECT id, tenant_id, queue, kind, status, epoch, attempt, finished_at, last_error_code
     FROM outbox.history
     WHERE finished_at >= greatest(@since::timestamptz, statement_timestamp() - interval '2 hours') -- a position that is older is lost
       AND age(history.xmin) <= (SELECT age(CAST(CAST(@horizon::text AS xid8) AS xid)))
       AND (sqlc.narg(tenant)::uuid IS NULL OR tenant_id = sqlc.narg(tenant)::uuid)
     LIMIT @max_rows::integer)
) AS changed ON true
LIMIT @max_rows::integer;
