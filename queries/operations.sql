-- name: StartOperation :one
-- StartOperation stores an operation, and forgets those that ended long ago.
WITH forgotten AS (
    DELETE FROM outbox.operations WHERE finished_at < statement_timestamp() - interval '90 days'
), started AS (
    INSERT INTO outbox.operations (id, tenant_id, act, filter, per_second, matched, actor, reason, request_id)
    VALUES (@id::uuid, sqlc.narg(tenant_id)::uuid, @act::text, @filter::jsonb, @per_second::float8, @matched::bigint, @actor::text, @reason::text, @request_id::text)
    RETURNING *
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT started.actor, nullif(started.request_id, ''), nullif(started.reason, ''), 'operation.start', started.id::text, started.tenant_id,
        '{"operation": null}', jsonb_build_object('act', started.act, 'filter', started.filter, 'per_second', started.per_second, 'matched', started.matched)
    FROM started
)
SELECT started.created_at FROM started;

-- name: ListOperations :many
-- ListOperations returns up to @max_rows operations of a @tenant or of any, newest first, from the one before
-- @before on; with an @id only that one.
SELECT operations.id, operations.tenant_id, operations.act, operations.filter, operations.per_second, operations.matched, operations.done, operations.passed,
       operations.actor, operations.reason, operations.request_id, operations.created_at, operations.stopped_at, operations.finished_at,
       coalesce(operations.failure, '')::text AS failure
FROM outbox.operations
WHERE operations.id < @before
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR operations.tenant_id = sqlc.narg(tenant_id))
  AND (sqlc.narg(id)::uuid IS NULL OR operations.id = sqlc.narg(id))
ORDER BY operations.id DESC
LIMIT @max_rows;

-- name: SwitchOperation :many
-- SwitchOperation stops an operation, once its present step is done, or resumes it. It returns whether that
-- changed anything; nothing if there is no such operation.
WITH found AS MATERIALIZED (
    SELECT operations.id, operations.tenant_id, operations.stopped_at, operations.finished_at, operations.done
    FROM outbox.operations
    WHERE operations.id = @id
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR operations.tenant_id = sqlc.narg(tenant_id))
    FOR UPDATE
), switched AS (
    UPDATE outbox.operations
    SET stopped_at = CASE WHEN @stop::boolean THEN clock_timestamp() END,
        next_at    = CASE WHEN @stop THEN operations.next_at ELSE greatest(operations.next_at, clock_timestamp()) END
    FROM found
    WHERE operations.id = found.id
      AND found.finished_at IS NULL
      AND (found.stopped_at IS NULL) = @stop
    RETURNING operations.id
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), CASE WHEN @stop THEN 'operation.stop' ELSE 'operation.resume' END,
        found.id::text, found.tenant_id, jsonb_build_object('stopped', NOT @stop, 'done', found.done), jsonb_build_object('stopped', @stop)
    FROM found
    JOIN switched ON switched.id = found.id
)
SELECT (switched.id IS NOT NULL)::boolean AS switched
FROM found
LEFT JOIN switched ON switched.id = found.id
LIMIT 1;

-- name: TakeOperation :many
-- TakeOperation holds the operation whose next step is due first, within a second, until the transaction ends. One
-- that another process holds is passed by.
SELECT operations.id, operations.tenant_id, operations.act, operations.filter, operations.per_second, operations.position,
       operations.actor, operations.reason, operations.request_id,
       extract(epoch FROM operations.next_at - statement_timestamp())::double precision AS due_in_seconds
FROM outbox.operations
WHERE operations.finished_at IS NULL
  AND operations.stopped_at IS NULL
  AND operations.next_at <= statement_timestamp() + interval '1 second'
ORDER BY operations.next_at
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: AdvanceOperation :exec
-- AdvanceOperation says what a step has done, and when the next one may begin.
UPDATE outbox.operations
SET done        = operations.done + @done::bigint,
    passed      = operations.passed + @passed::bigint,
    position    = coalesce(sqlc.narg(position)::uuid, operations.position),
    next_at     = clock_timestamp() + @pause::interval,
    finished_at = CASE WHEN @finished::boolean THEN clock_timestamp() END,
    failure     = NULL
WHERE operations.id = @id;

-- name: DelayOperation :exec
-- DelayOperation has a step that failed tried again after @pause.
UPDATE outbox.operations
SET next_at = clock_timestamp() + @pause::interval,
    failure = @failure::text
WHERE operations.id = @id
  AND operations.finished_at IS NULL;
