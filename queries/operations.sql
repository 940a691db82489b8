-- name: StartOperation :one
-- StartOperation stores an operation, unless there is one with its id, or @most operations of the tenant, or of all
-- tenants, are under way, or ten times as many are unfinished, with those that are stopped. It hides an act on open
-- jobs from builds that do not know such acts (migrations/00010_bulk.sql); before the act may stand that its jobs are
-- still to be collected, with the filter's as_of.
WITH started AS (
    INSERT INTO outbox.operations (id, tenant_id, act, open_act, next_at, open_at, filter, per_second, matched, actor, reason, request_id)
    SELECT @id::uuid, sqlc.narg(tenant_id)::uuid, CASE WHEN of_letters THEN @act::text ELSE 'replay' END, CASE WHEN NOT of_letters THEN @act END,
        CASE WHEN of_letters THEN statement_timestamp() ELSE 'infinity' END, CASE WHEN NOT of_letters THEN statement_timestamp() END,
        @filter::jsonb, @per_second::float8, @matched::bigint, @actor::text, @reason::text, @request_id::text
    FROM (SELECT @act IN ('replay', 'dismiss') AS of_letters) AS kind
    WHERE (
        SELECT count(*) FILTER (WHERE others.stopped_at IS NULL) < @most::bigint AND count(*) < 10 * @most FROM outbox.operations AS others
        WHERE others.finished_at IS NULL AND others.tenant_id IS NOT DISTINCT FROM sqlc.narg(tenant_id))
    ON CONFLICT DO NOTHING
    RETURNING *
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT started.actor, nullif(started.request_id, ''), nullif(started.reason, ''), 'operation.start', started.id::text, started.tenant_id,
        '{"operation": null}', jsonb_build_object('act', replace(coalesce(started.open_act, started.act), 'collect ', ''),
            'filter', started.filter - 'as_of', 'per_second', started.per_second, 'matched', started.matched)
    FROM started
)
SELECT started.created_at FROM started;

-- name: TrimOperations :one
-- TrimOperations forgets operations that ended, or were stopped and not resumed, before now() - @keep, and deletes up
-- to @max_rows jobs that forgotten ones were still to act on. An operation is stored before its jobs, or together with
-- them. The operations that have jobs are few, and are looked up one after the other.
WITH RECURSIVE forgotten AS (
    DELETE FROM outbox.operations
    WHERE finished_at < statement_timestamp() - @keep::interval
       OR (finished_at IS NULL AND stopped_at < statement_timestamp() - @keep)
    RETURNING 1
), named (id) AS (
    SELECT (SELECT first.operation_id FROM outbox.operation_jobs AS first ORDER BY first.operation_id LIMIT 1)
    UNION ALL
    SELECT (SELECT next.operation_id FROM outbox.operation_jobs AS next WHERE next.operation_id > named.id ORDER BY next.operation_id LIMIT 1)
    FROM named
    WHERE named.id IS NOT NULL
), old AS MATERIALIZED (
    SELECT left_over.operation_id, left_over.job_id
    FROM named
    CROSS JOIN LATERAL (
        SELECT meant.operation_id, meant.job_id FROM outbox.operation_jobs AS meant WHERE meant.operation_id = named.id LIMIT @max_rows::integer
    ) AS left_over
    WHERE NOT EXISTS (SELECT FROM outbox.operations WHERE operations.id = named.id)
    LIMIT @max_rows
), trimmed AS (
    DELETE FROM outbox.operation_jobs
    USING old
    WHERE operation_jobs.operation_id = old.operation_id
      AND operation_jobs.job_id = old.job_id
    RETURNING 1
)
SELECT (SELECT count(*) FROM trimmed)::bigint AS jobs, (SELECT count(*) FROM forgotten)::bigint AS operations;

-- name: ListOperations :many
-- ListOperations returns up to @max_rows operations of a @tenant or of any, newest first, starting with the one before
-- @before; with an @id only that one, wherever it stands.
SELECT operations.id, operations.tenant_id, coalesce(operations.open_act, operations.act)::text AS act,
       operations.filter, operations.per_second, operations.matched, operations.done, operations.passed,
       operations.actor, operations.reason, operations.request_id, operations.created_at, operations.stopped_at, operations.finished_at,
       coalesce(operations.failure, '')::text AS failure,
       (operations.finished_at IS NULL AND operations.stopped_at IS NULL
           AND coalesce(operations.open_at, operations.next_at) < statement_timestamp() - interval '1 minute')::boolean AS overdue
FROM outbox.operations
WHERE (operations.id < @before OR sqlc.narg(id)::uuid IS NOT NULL)
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR operations.tenant_id = sqlc.narg(tenant_id))
  AND (sqlc.narg(id)::uuid IS NULL OR operations.id = sqlc.narg(id))
ORDER BY operations.id DESC
LIMIT @max_rows;

-- name: LockOperation :exec
-- LockOperation locks an operation until the transaction ends. It waits for a step that is under way.
SELECT 1 FROM outbox.operations WHERE operations.id = @id FOR UPDATE;

-- name: SwitchOperation :many
-- SwitchOperation stops an operation, once its present step is done, or resumes it, unless @most of its tenant, or of
-- all tenants, are under way. It returns the operation in its new state, as ListOperations does; nothing if there is
-- none.
WITH found AS MATERIALIZED (
    SELECT operations.*
    FROM outbox.operations
    WHERE operations.id = @id
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR operations.tenant_id = sqlc.narg(tenant_id))
    FOR UPDATE
), switched AS (
    UPDATE outbox.operations
    SET stopped_at = CASE WHEN @stop::boolean THEN clock_timestamp() END,
        next_at    = CASE WHEN @stop THEN operations.next_at ELSE greatest(operations.next_at, clock_timestamp()) END,
        open_at    = CASE WHEN @stop OR operations.open_at IS NULL THEN operations.open_at ELSE greatest(operations.open_at, clock_timestamp()) END
    FROM found
    WHERE operations.id = found.id
      AND found.finished_at IS NULL
      AND (found.stopped_at IS NULL) = @stop
      AND (@stop OR @most::bigint > (
          SELECT count(*) FROM outbox.operations AS others
          WHERE others.finished_at IS NULL AND others.stopped_at IS NULL AND others.tenant_id IS NOT DISTINCT FROM found.tenant_id))
    RETURNING operations.id, operations.stopped_at
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), CASE WHEN @stop THEN 'operation.stop' ELSE 'operation.resume' END,
        found.id::text, found.tenant_id, jsonb_build_object('stopped', NOT @stop, 'done', found.done),
        jsonb_build_object('stopped', @stop, 'stopped_at', switched.stopped_at)
    FROM found
    JOIN switched ON switched.id = found.id
)
SELECT found.id, found.tenant_id, coalesce(found.open_act, found.act)::text AS act, found.filter, found.per_second,
       found.matched, found.done, found.passed, found.actor, found.reason, found.request_id, found.created_at,
       (CASE WHEN switched.id IS NULL THEN found.stopped_at ELSE switched.stopped_at END)::timestamptz AS stopped_at, found.finished_at,
       coalesce(found.failure, '')::text AS failure, false AS overdue
FROM found
LEFT JOIN switched ON switched.id = found.id
LIMIT 1;

-- name: TakeOperation :many
-- TakeOperation locks an operation whose next step is due within a second, until the transaction ends. Within a tenant
-- it takes the operation that is due first, and it draws tenants by lot: however many operations one tenant has,
-- another's continue. It passes by operations that another process has locked, and those whose act is not one of @acts:
-- they are for a newer build.
WITH line AS MATERIALIZED (
    SELECT open.id, row_number() OVER (PARTITION BY open.tenant_id ORDER BY coalesce(open.open_at, open.next_at)) AS place
    FROM outbox.operations AS open
    WHERE open.finished_at IS NULL
      AND open.stopped_at IS NULL
      AND coalesce(open.open_act, open.act) = ANY (@acts::text[])
)
SELECT operations.id, operations.tenant_id, coalesce(operations.open_act, operations.act)::text AS act,
       operations.filter, operations.per_second, operations.position, operations.actor, operations.reason,
       operations.request_id,
       extract(epoch FROM coalesce(operations.open_at, operations.next_at) - statement_timestamp())::double precision AS due_in_seconds
FROM line
JOIN outbox.operations ON operations.id = line.id
WHERE operations.finished_at IS NULL
  AND operations.stopped_at IS NULL
  AND coalesce(operations.open_at, operations.next_at) <= statement_timestamp() + interval '1 second'
ORDER BY greatest(coalesce(operations.open_at, operations.next_at), statement_timestamp()), line.place, random()
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: AdvanceOperation :exec
-- AdvanceOperation stores what a step has done, and when the next one may begin. A finished operation has passed by
-- what it has not done: no step has seen a dead letter that somebody else had handled by then. The next step is due so
-- long after this one was, not after it ended, or the rate would be lower than the one asked for; a step that was more
-- than half a second late does not have that made up for.
UPDATE outbox.operations
SET done        = operations.done + @done::bigint,
    passed      = greatest(operations.passed + @passed::bigint,
        CASE WHEN @finished::boolean THEN operations.matched - operations.done - @done END),
    position    = coalesce(sqlc.narg(position)::uuid, operations.position),
    next_at     = CASE WHEN operations.open_at IS NULL
        THEN greatest(operations.next_at, clock_timestamp() - interval '500 milliseconds') + @pause::interval ELSE operations.next_at END,
    open_at     = CASE WHEN operations.open_at IS NOT NULL
        THEN greatest(operations.open_at, clock_timestamp() - interval '500 milliseconds') + @pause END,
    finished_at = CASE WHEN @finished THEN clock_timestamp() END,
    failure     = NULL
WHERE operations.id = @id;

-- name: DelayOperation :exec
-- DelayOperation schedules a failed step for another try after @pause.
UPDATE outbox.operations
SET next_at = CASE WHEN operations.open_at IS NULL THEN clock_timestamp() + @pause::interval ELSE operations.next_at END,
    open_at = CASE WHEN operations.open_at IS NOT NULL THEN clock_timestamp() + @pause END,
    failure = @failure::text
WHERE operations.id = @id
  AND operations.finished_at IS NULL;
