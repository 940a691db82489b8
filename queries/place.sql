-- name: SettleInPlace :many
-- SettleInPlace is SettleSucceeded for jobs without results that are where their claims
-- have left them: they are one scan of their places, and no index is asked. Those that have
-- moved since (their leases were extended, or somebody watches them or wants them
-- cancelled) are not matched, and left to SettleSucceeded. The place is a hint, which may
-- be that of another job by now: (id, epoch) is the whole fence here, too. IS TRUE keeps it
-- a condition that is looked up in a table of what was asked for: as a join there would be
-- something to choose.
--
-- It waits for rows in the order of their places, as nobody else does. So it does not wait
-- for as long as makes a deadlock (docs/adr/0017-settled-as-a-list.md).
WITH done AS (
    DELETE FROM outbox.jobs
    WHERE jobs.ctid = ANY (@places::tid[])
      AND ((jobs.id, jobs.epoch) IN (SELECT unnest(@ids::uuid[]), unnest(@epochs::bigint[]))) IS TRUE
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
    RETURNING jobs.id, jobs.tenant_id, jobs.run_at, jobs.created_at, jobs.started_at, jobs.epoch, jobs.status, jobs.attempt,
        jobs.max_attempts, jobs.lost_leases, jobs.priority, jobs.queue, jobs.kind, jobs.payload, jobs.content_type, jobs.key,
        jobs.headers, jobs.timeout, jobs.backoff, jobs.lease_owner, jobs.last_error_code, jobs.last_error_message, jobs.deadline,
        jobs.cancel_requested_at, jobs.parent_id
)
INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt,
    max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, worker,
    last_error_code, last_error_message, deadline, cancel_requested_at, parent_id)
SELECT id, tenant_id, run_at, created_at, started_at, epoch, 'succeeded', status, attempt,
    max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, lease_owner,
    last_error_code, last_error_message, deadline, cancel_requested_at, parent_id
FROM done
RETURNING id;

-- name: SettleResultsInPlace :many
-- SettleResultsInPlace is SettleInPlace for jobs of which some have results, in the order
-- of their ids.
--
-- id is compared by the function behind =, which no plan can look up in an index: of an
-- empty table the server believes that the primary key costs as much as the place.
WITH input AS MATERIALIZED (
    SELECT unnest(@places::tid[]) AS place, unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@results::bytea[]) AS result
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.ctid = input.place
      AND uuid_eq(jobs.id, input.id)
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
    RETURNING jobs.id, jobs.tenant_id, jobs.run_at, jobs.created_at, jobs.started_at, jobs.epoch, jobs.status, jobs.attempt,
        jobs.max_attempts, jobs.lost_leases, jobs.priority, jobs.queue, jobs.kind, jobs.payload, jobs.content_type, jobs.key,
        jobs.headers, jobs.timeout, jobs.backoff, jobs.lease_owner, jobs.last_error_code, jobs.last_error_message, jobs.deadline,
        jobs.cancel_requested_at, jobs.parent_id, (input).result AS result
)
INSERT INTO outbox.history (id, tenant_id, run_at, created_at, started_at, epoch, status, closed_from, attempt,
    max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, worker, result,
    last_error_code, last_error_message, deadline, cancel_requested_at, parent_id)
SELECT id, tenant_id, run_at, created_at, started_at, epoch, 'succeeded', status, attempt,
    max_attempts, lost_leases, priority, queue, kind, payload, content_type, key, headers, timeout, backoff, lease_owner, result,
    last_error_code, last_error_message, deadline, cancel_requested_at, parent_id
FROM done
RETURNING id;
