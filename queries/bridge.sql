-- name: OwnBridge :many
-- OwnBridge makes a process the one that fetches a bridge's messages, if no other does. Its row is a position, under a
-- consumer's name that no user's consumer has: it counts the messages that have been stored.
INSERT INTO outbox.inbox_positions AS p (consumer, source, partition, position, epoch, lease_expires_at)
VALUES ('-bridge', @bridge, 0, 0, 1, clock_timestamp() + @lease_ttl::interval)
ON CONFLICT (consumer, source, partition) DO UPDATE
SET epoch = p.epoch + 1, lease_expires_at = clock_timestamp() + @lease_ttl::interval
WHERE {{lapsed "p.lease_expires_at"}}
RETURNING epoch;

-- name: KeepBridge :execrows
-- KeepBridge extends the lease, unless another process has the bridge, and stores what the bridge waits for. In the
-- transaction that stores jobs it is the fence: another process waits for the row, and then finds the lease extended.
UPDATE outbox.inbox_positions
SET lease_expires_at = clock_timestamp() + @lease_ttl::interval,
    position = greatest(position, 0) + @stored::bigint,
    moved_at = CASE WHEN @stored::bigint > 0 THEN statement_timestamp() ELSE moved_at END,
    lag          = sqlc.narg(lag)::bigint,
    away_since   = clock_timestamp() - sqlc.narg(away_for)::interval,
    away_message = sqlc.narg(away_message)::text
WHERE consumer = '-bridge'
  AND source = @bridge
  AND partition = 0
  AND epoch = @epoch;

-- name: LeaveBridge :exec
-- LeaveBridge lets another process take the bridge at once.
UPDATE outbox.inbox_positions
SET lease_expires_at = NULL
WHERE consumer = '-bridge'
  AND source = @bridge
  AND partition = 0
  AND epoch = @epoch;

-- name: ListBridges :many
-- ListBridges returns all bridges by name. It ignores the state of a process that has stopped fetching.
SELECT source AS bridge, greatest(position, 0)::bigint AS stored,
       (CASE WHEN position > 0 THEN moved_at END)::timestamptz AS moved_at, moved_at AS seen_at, state.fetching,
       coalesce(CASE WHEN state.fetching THEN lag END, -1)::bigint AS lag,
       (CASE WHEN state.fetching THEN away_since END)::timestamptz AS away_since,
       coalesce(CASE WHEN state.fetching THEN away_message END, '')::text AS away_message
FROM outbox.inbox_positions
CROSS JOIN LATERAL (SELECT (NOT {{lapsed "lease_expires_at"}})::boolean AS fetching) AS state
WHERE consumer = '-bridge'
  AND partition = 0
ORDER BY source;

-- name: CountWaiting :one
-- CountWaiting counts the waiting jobs of a tenant's queue, up to a number. Each part has an index.
SELECT count(*)
FROM (
    SELECT 1 FROM outbox.jobs
    WHERE jobs.queue = @queue AND jobs.tenant_id = @tenant_id AND jobs.key IS NULL AND jobs.status IN ('pending', 'retrying')
    UNION ALL
    SELECT 1 FROM outbox.jobs
    WHERE jobs.queue = @queue AND jobs.tenant_id = @tenant_id AND jobs.key IS NOT NULL AND jobs.status IN ('pending', 'retrying')
    UNION ALL
    SELECT 1 FROM outbox.jobs
    WHERE jobs.queue = @queue AND jobs.tenant_id = @tenant_id AND jobs.key IS NOT NULL AND jobs.ordered IS NULL AND jobs.status = 'blocked'
    UNION ALL
    SELECT 1 FROM outbox.jobs
    WHERE jobs.queue = @queue AND jobs.tenant_id = @tenant_id AND jobs.ordered AND jobs.status = 'blocked'
      AND (jobs.status NOT IN ('failed', 'dead') OR jobs.on_death IS DISTINCT FROM 'skip')
    LIMIT @most
) AS waiting;

-- name: StoreUndecodable :execrows
-- StoreUndecodable stores a dead letter, once, for a message from which no job can be made.
WITH first AS (
    INSERT INTO outbox.idempotency_keys (tenant_id, kind, key, job_id)
    VALUES (@tenant_id, @kind, @idempotency_key, @id)
    ON CONFLICT DO NOTHING
    RETURNING job_id
)
INSERT INTO outbox.jobs (id, tenant_id, queue, kind, payload, status, last_error_code, last_error_message, error_fingerprint, failed_at)
SELECT job_id, @tenant_id, @queue, @kind, @payload, 'dead', @error_code::text, @error_message::text, @fingerprint::text, statement_timestamp()
FROM first;
