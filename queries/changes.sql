-- name: FindPosition :one
-- FindPosition returns where a reader begins that wants the changes from now on, and whether there can be any new ones:
-- see ListChanges. It reads no page of any table, however many jobs there are:
--
--     EXPLAIN (ANALYZE, BUFFERS), a million open jobs, nothing has changed, PostgreSQL 15:
--     FindPosition   Result (actual time=0.006..0.006 rows=1 loops=1), no buffers
--     ListChanges    Seq Scan on jobs (actual time=466.469..466.471 rows=0 loops=1)
--                    Buffers: shared hit=2863 read=59637
--
-- Two snapshots with the same text see the same rows. written counts what statements have ever done to rows of the open
-- jobs. The server adds a transaction's changes after its commit: mostly at once, ten seconds later if its session has
-- added something in the second before and then sleeps, a minute later at worst.
SELECT pg_current_snapshot()::text AS snapshot, pg_snapshot_xmin(pg_current_snapshot())::text AS horizon,
       pg_snapshot_xmax(pg_current_snapshot())::text AS next, statement_timestamp()::timestamptz AS at,
       (pg_stat_get_tuples_inserted(jobs.oid) + pg_stat_get_tuples_updated(jobs.oid) + pg_stat_get_tuples_deleted(jobs.oid))::bigint AS written
FROM (SELECT CAST('outbox.jobs' AS regclass) AS oid) AS jobs;

-- name: ListChanges :many
-- ListChanges returns the jobs that may have changed since a position, in their present state, each at most once: it is
-- one snapshot, in which a job is either open or closed.
--
-- The position is a transaction id, @horizon: when it was taken, every transaction below it had ended. Everything that
-- those wrote was visible then, so what was not visible then has a row version whose xmin is not below. That holds for
-- transactions that commit late, and for subtransactions, whose ids are above their parent's. Rows of transactions
-- above the position that had committed already are returned again, unless they are below @known and not among
-- @unsettled: see ListUnsettled.
--
-- A frozen row keeps its xmin, and after two billion transactions its age is negative, as that of the future. It is no
-- change then, but for the last million before the ids have come round. A change can be younger than this transaction,
-- to which age refers, but not by a million.
--
-- An index cannot have xmin. The open jobs are read from one end to the other. In the history, @since limits the scan
-- to the newest pages: no row in question has finished before it. @since also excludes jobs that have run for longer:
-- an extended lease is a new version of the row, but no change.
--
-- The first columns are the same in every row: the next position. Without a change there is one row with NULL as its
-- id.
SELECT pg_snapshot_xmin(seen.snapshot)::text AS horizon, pg_snapshot_xmax(seen.snapshot)::text AS next, statement_timestamp()::timestamptz AS at,
       changed.id, changed.tenant_id, coalesce(changed.queue, '')::text AS queue, coalesce(changed.kind, '')::text AS kind,
       coalesce(changed.status::text, '')::text AS status, coalesce(changed.epoch, 0)::bigint AS epoch,
       coalesce(changed.attempt, 0)::integer AS attempt, changed.finished_at,
       coalesce(changed.error_code, '')::text AS error_code
FROM (SELECT pg_current_snapshot() AS snapshot) AS seen
LEFT JOIN (
    (SELECT id, tenant_id, queue, kind, status, epoch, attempt, NULL::timestamptz AS finished_at, last_error_code AS error_code
     FROM outbox.jobs
     WHERE age(jobs.xmin) BETWEEN -1000000 AND (SELECT age(CAST(CAST(@horizon::text AS xid8) AS xid)))
       AND (age(jobs.xmin) <= (SELECT age(CAST(CAST(@known::text AS xid8) AS xid)))
            OR jobs.xmin IN (SELECT CAST(CAST(u::text AS xid8) AS xid) FROM unnest(@unsettled::bigint[]) AS u))
       AND (status <> 'running' OR started_at >= @since::timestamptz)
       AND (sqlc.narg(tenant)::uuid IS NULL OR tenant_id = sqlc.narg(tenant)::uuid)
     LIMIT @max_rows::integer)
    UNION ALL
    (SELECT id, tenant_id, queue, kind, status, epoch, attempt, finished_at, last_error_code
     FROM outbox.history
     -- An older position is lost.
     WHERE finished_at >= greatest(@since::timestamptz, statement_timestamp() - interval '2 hours')
       AND age(history.xmin) <= (SELECT age(CAST(CAST(@horizon::text AS xid8) AS xid)))
       AND (age(history.xmin) <= (SELECT age(CAST(CAST(@known::text AS xid8) AS xid)))
            OR history.xmin IN (SELECT CAST(CAST(u::text AS xid8) AS xid) FROM unnest(@unsettled::bigint[]) AS u))
       AND (sqlc.narg(tenant)::uuid IS NULL OR tenant_id = sqlc.narg(tenant)::uuid)
     LIMIT @max_rows::integer)
) AS changed ON true
LIMIT @max_rows::integer;

-- name: ListUnsettled :many
-- ListUnsettled returns which transactions, of @open and from @first to @last, had not committed when it came to them:
-- those of @open first, then the oldest. What any other of them wrote is visible to every statement that begins
-- afterwards.
--
-- It asks for the state of each transaction, because a snapshot does not know subtransactions: a subtransaction whose
-- savepoint wrote a row runs as long as its parent does, and is not in the snapshot's list. A transaction that got its
-- id just now may be reported as rolled back, so that counts as unsettled, too. Asking for 20 000 took 8 ms.
SELECT id::bigint AS id
FROM (
    SELECT unnest(@open::bigint[]) AS id
    UNION ALL
    SELECT generate_series(@first::bigint, @last::bigint) AS id
) AS asked
WHERE pg_xact_status(CAST(id::text AS xid8)) IS DISTINCT FROM 'committed'
LIMIT @max_rows::integer;

-- name: ListActsSince :many
-- ListActsSince returns the acts with a link of the audit's chain after @after that concern no job: those on queues,
-- keys, schedules, sinks and operations. Each row has the chain's latest link; if there is no such act, one row has
-- only that. Acts on jobs are passed over: an operation writes thousands. Links commit in their order, so none with a
-- lower number comes later.
SELECT latest.seq::bigint AS latest, coalesce(act.seq, 0)::bigint AS link, act.tenant_id
FROM (SELECT coalesce(max(audit_chain.seq), 0) AS seq FROM outbox.audit_chain) AS latest
LEFT JOIN (
    SELECT chain.seq, audit.tenant_id
    FROM outbox.audit_chain AS chain
    JOIN outbox.audit ON audit.id = ANY (ARRAY[chain.audit_id])
    WHERE chain.seq > @after::bigint AND audit.job_id IS NULL
) AS act ON true;
