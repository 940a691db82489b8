-- name: TrimHistory :many
-- TrimHistory deletes the rows beyond their retention from the blocks [@first_block, @end_block) of one day's
-- partition, frees their idempotency keys, and counts them by outcome. A rule for the job's queue takes precedence over
-- the one for any queue, which is ''; an outcome without a rule is kept. It uses blocks rather than a LIMIT: however
-- many rows stay or are dead already, a partition is read once from end to end.
--
-- The keys are found first, and deleted in the order of their places, as every statement that deletes several does: in
-- the order in which their jobs have finished, this one and RemoveSink could deadlock. Keys are never updated, so a key
-- stays at its place.
WITH rule AS MATERIALIZED (
    SELECT unnest(@statuses::text[])::outbox.job_status AS status, unnest(@queues::text[]) AS queue, unnest(@keeps::interval[]) AS keep
), trimmed AS (
    DELETE FROM outbox.history
    WHERE history.finished_at >= @first_instant
      AND history.finished_at < @end_instant
      AND history.ctid >= format('(%s,0)', @first_block::bigint)::tid
      AND history.ctid < format('(%s,0)', @end_block::bigint)::tid
      AND history.finished_at < now() - coalesce(
          (SELECT rule.keep FROM rule WHERE rule.status = history.status AND rule.queue = history.queue),
          (SELECT rule.keep FROM rule WHERE rule.status = history.status AND rule.queue = ''))
    RETURNING history.id, history.status
), freed AS (
    DELETE FROM outbox.idempotency_keys
    WHERE idempotency_keys.ctid = ANY (ARRAY(
        SELECT keys.ctid
        FROM trimmed
        JOIN outbox.idempotency_keys AS keys ON keys.job_id = trimmed.id
    ))
    RETURNING 1
)
SELECT trimmed.status::text AS status, count(*) AS jobs, (SELECT count(*) FROM freed) AS keys
FROM trimmed
GROUP BY trimmed.status
LIMIT 100;

-- name: CountDay :many
-- CountDay counts by outcome the rows in the blocks [@first_block, @end_block) of one day's partition, and how many of
-- them are within their retention.
WITH rule AS MATERIALIZED (
    SELECT unnest(@statuses::text[])::outbox.job_status AS status, unnest(@queues::text[]) AS queue, unnest(@keeps::interval[]) AS keep
)
SELECT history.status::text AS status, count(*) AS jobs,
       count(*) FILTER (WHERE (history.finished_at < now() - coalesce(
           (SELECT rule.keep FROM rule WHERE rule.status = history.status AND rule.queue = history.queue),
           (SELECT rule.keep FROM rule WHERE rule.status = history.status AND rule.queue = ''))) IS NOT TRUE) AS staying
FROM outbox.history
WHERE history.finished_at >= @first_instant
  AND history.finished_at < @end_instant
  AND history.ctid >= format('(%s,0)', @first_block::bigint)::tid
  AND history.ctid < format('(%s,0)', @end_block::bigint)::tid
GROUP BY history.status
LIMIT 100;

-- name: FreeKeys :one
-- FreeKeys deletes the idempotency keys of the jobs in the blocks [@first_block, @end_block) of one day's partition,
-- which is about to be dropped.
WITH freed AS (
    DELETE FROM outbox.idempotency_keys
    WHERE idempotency_keys.ctid = ANY (ARRAY(
        SELECT keys.ctid
        FROM outbox.history
        JOIN outbox.idempotency_keys AS keys ON keys.job_id = history.id
        WHERE history.finished_at >= @first_instant
          AND history.finished_at < @end_instant
          AND history.ctid >= format('(%s,0)', @first_block::bigint)::tid
          AND history.ctid < format('(%s,0)', @end_block::bigint)::tid
    ))
    RETURNING 1
)
SELECT count(*) FROM freed;

-- name: HasKeys :one
SELECT EXISTS (SELECT FROM outbox.idempotency_keys)::boolean;

-- name: TrimDeadLetters :one
-- TrimDeadLetters deletes, of up to @max_rows dead letters after the given one, those that nobody has acted on within
-- their retention, frees their idempotency keys, and returns where it stopped. The rules are those of TrimHistory. A
-- message that a sink has refused and that blocks its key stays, whatever the rules are: without it the key would go
-- on. So does a dead letter of an ordered key with jobs behind it; the one for which a key is parked: without it no
-- one would know why; and another that lost its lease in a parked key, while jobs wait for the key: unblocking the
-- key is to retry them. A letter whose successor is stored while this statement runs is deleted, as it might have been
-- before.
WITH rule AS MATERIALIZED (
    SELECT unnest(@statuses::text[])::outbox.job_status AS status, unnest(@queues::text[]) AS queue, unnest(@keeps::interval[]) AS keep
), letter AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch,
           NOT (starts_with(jobs.kind, 'relay:') AND jobs.key IS NOT NULL AND jobs.on_death IS DISTINCT FROM 'skip')
           AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) < now() - coalesce(
               (SELECT rule.keep FROM rule WHERE rule.status = jobs.status AND rule.queue = jobs.queue),
               (SELECT rule.keep FROM rule WHERE rule.status = jobs.status AND rule.queue = ''))
           AND NOT (jobs.ordered IS TRUE AND jobs.key IS NOT NULL AND jobs.on_death IS DISTINCT FROM 'skip' AND EXISTS (
               SELECT
               FROM outbox.jobs AS behind
               WHERE behind.tenant_id = jobs.tenant_id AND behind.queue = jobs.queue AND behind.key = jobs.key
                 AND behind.ordered AND behind.status <> 'created' AND behind.status NOT IN ('failed', 'dead')))
           AND NOT (jobs.key IS NOT NULL AND EXISTS (
               SELECT
               FROM outbox.keys
               WHERE keys.tenant_id = jobs.tenant_id AND keys.queue = jobs.queue AND keys.key = jobs.key
                 AND keys.parked_at IS NOT NULL AND keys.parked_for = jobs.id))
           AND NOT ((jobs.on_lapse = 'block' AND jobs.last_error_code = 'lease_lost') IS TRUE AND jobs.key IS NOT NULL AND EXISTS (
               SELECT
               FROM outbox.keys
               WHERE keys.tenant_id = jobs.tenant_id AND keys.queue = jobs.queue AND keys.key = jobs.key
                 AND keys.parked_at IS NOT NULL
           ) AND EXISTS (
               SELECT
               FROM outbox.jobs AS waiting
               WHERE waiting.tenant_id = jobs.tenant_id AND waiting.queue = jobs.queue AND waiting.key = jobs.key
                 AND waiting.key IS NOT NULL AND waiting.ordered IS NULL AND waiting.status <> 'running'
                 AND waiting.status NOT IN ('failed', 'dead')
               UNION ALL
               SELECT
               FROM outbox.jobs AS waiting
               WHERE waiting.tenant_id = jobs.tenant_id AND waiting.queue = jobs.queue AND waiting.key = jobs.key
                 AND waiting.ordered AND waiting.status <> 'created' AND waiting.status NOT IN ('failed', 'dead')
           )) AS is_past
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND jobs.id > @after
    ORDER BY jobs.id
    LIMIT @max_rows
), trimmed AS (
    DELETE FROM outbox.jobs
    USING letter
    WHERE letter.is_past
      AND jobs.id = letter.id
      AND jobs.epoch = letter.epoch -- not replayed meanwhile
    RETURNING jobs.id, jobs.status
), freed AS (
    DELETE FROM outbox.idempotency_keys
    WHERE idempotency_keys.ctid = ANY (ARRAY(
        SELECT keys.ctid
        FROM trimmed
        JOIN outbox.idempotency_keys AS keys ON keys.job_id = trimmed.id
    ))
    RETURNING 1
), reached AS (
    SELECT letter.id FROM letter ORDER BY letter.id DESC LIMIT 1
)
SELECT (SELECT count(*) FROM letter) AS looked_at,
       (SELECT count(*) FROM trimmed WHERE trimmed.status = 'failed') AS failed,
       (SELECT count(*) FROM trimmed WHERE trimmed.status = 'dead') AS dead,
       (SELECT count(*) FROM freed) AS keys,
       reached.id::uuid AS last
FROM (SELECT 1) AS always
LEFT JOIN reached ON true;
