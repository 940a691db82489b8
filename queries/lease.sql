-- name: ExtendLeases :many
-- ExtendLeases extends the given leases. It returns those whose rows it could not write, with the reason: lost, or
-- locked right now. A row is locked while a handler's transaction that has called Guard or Complete is open; waiting
-- for it would let every other lease of the batch lapse. Such a lease is extended in lease_extensions, which reapers
-- read, too: the transaction may outlast the lease, and its COMMIT must not leave a running job with a lapsed lease.
-- The lock is no stronger than that of the update itself, so that it does not conflict with a statement that records
-- reports.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@starts::timestamptz[]) AS started_at
), ours AS MATERIALIZED (
    SELECT jobs.id
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
        AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
    FOR NO KEY UPDATE SKIP LOCKED
), extended AS (
    UPDATE outbox.jobs
    SET lease_expires_at = clock_timestamp() + @lease_ttl::interval
    FROM ours
    WHERE jobs.id = ANY (ARRAY[ours.id])
    RETURNING jobs.id, jobs.epoch, jobs.started_at
), missed AS MATERIALIZED (
    SELECT input.id, input.epoch, input.started_at, held.id IS NULL AS lost
    FROM input
    LEFT JOIN outbox.jobs AS held ON held.id = ANY (ARRAY[input.id]) AND held.epoch = input.epoch
        AND coalesce(input.started_at, held.started_at) = held.started_at
    WHERE (input.id, input.epoch, input.started_at) NOT IN (SELECT extended.id, extended.epoch, extended.started_at FROM extended)
), beside AS (
    INSERT INTO outbox.lease_extensions AS stored (job_id, epoch, expires_at)
    SELECT missed.id, missed.epoch, clock_timestamp() + @lease_ttl::interval
    FROM missed
    WHERE NOT missed.lost
    ORDER BY missed.id
    ON CONFLICT (job_id, epoch) DO UPDATE
    SET expires_at = excluded.expires_at
)
SELECT missed.id::uuid AS id, missed.epoch::bigint AS epoch, missed.started_at::timestamptz AS started_at, missed.lost::boolean AS lost
FROM missed
LIMIT 100000;

-- name: GuardLease :execrows
-- GuardLease locks the job's row if (id, epoch, started_at) still holds it, so that the caller's transaction can only
-- commit as the owner. Past the job's deadline nobody is the owner.
SELECT 1
FROM outbox.jobs
WHERE id = @id
  AND epoch = @epoch
  AND coalesce(sqlc.narg(started_at)::timestamptz, started_at) = started_at
  AND (deadline IS NULL OR deadline > statement_timestamp())
FOR UPDATE;
