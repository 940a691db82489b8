-- name: RecordReports :many
-- RecordReports stores what attempts have reported since the last time: progress, checkpoints, lines of their logs, and
-- results of steps. For each attempt it stores all or nothing, and returns which: recorded; lost, if the attempt no
-- longer holds the job; or neither, if another transaction has the job's row locked right now.
--
-- The lock makes (id, epoch, started_at) a fence: until this statement ends, no transaction can claim, expire or close
-- the job. It is the weakest lock that does so: extensions of leases (FOR NO KEY UPDATE) neither wait for it nor skip
-- rows because of it, and the statements that it blocks skip the row, or wait for milliseconds. Rows that a handler's
-- own transaction has locked (Guard, Complete, a step) are skipped: waiting for them would delay every other job's
-- reports, and could be a deadlock.
--
-- A statement that nobody waits for any more may still arrive after the one that replaced it: the revisions show that
-- it is late.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[])                AS id,
           unnest(@epochs::bigint[])           AS epoch,
           unnest(@starts::timestamptz[])      AS started_at,
           unnest(@revisions::bigint[])        AS revision,
           unnest(@currents::bigint[])         AS current,
           unnest(@totals::bigint[])           AS total,
           unnest(@messages::text[])           AS message,
           unnest(@progress_ages::interval[])  AS progress_age,  -- NULL if there is no progress to store
           unnest(@checkpoints::bytea[])       AS checkpoint,    -- NULL if there is no checkpoint to store
           -- The slot of the attempt's line 0; -1 if it is unknown.
           nullif(unnest(@log_starts::smallint[]), -1)    AS log_start,
           nullif(unnest(@log_lines::text[]), '')::jsonb  AS log_lines, -- of {line, age, level, message}; '': none
           nullif(unnest(@steps::text[]), '')::jsonb      AS steps      -- of {name, took, result in base64}; '': none
), ours AS MATERIALIZED (
    SELECT input.*, jobs.streamed IS NOT NULL AS streamed
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
        AND coalesce(input.started_at, jobs.started_at) = jobs.started_at
    FOR KEY SHARE SKIP LOCKED
), saved AS (
    INSERT INTO outbox.progress AS stored (job_id, epoch, revision, current, total, message, reported_at, checkpoint,
        checkpoint_epoch, checkpointed_at)
    SELECT ours.id, ours.epoch, ours.revision,
           CASE WHEN ours.progress_age IS NOT NULL THEN ours.current END,
           CASE WHEN ours.progress_age IS NOT NULL THEN ours.total END,
           CASE WHEN ours.progress_age IS NOT NULL THEN ours.message END,
           statement_timestamp() - ours.progress_age,
           ours.checkpoint,
           CASE WHEN ours.checkpoint IS NOT NULL THEN ours.epoch END,
           CASE WHEN ours.checkpoint IS NOT NULL THEN statement_timestamp() END
    FROM ours
    ON CONFLICT (job_id) DO UPDATE
    SET epoch            = excluded.epoch,
        revision         = excluded.revision,
        current          = CASE WHEN excluded.reported_at IS NULL THEN stored.current ELSE excluded.current END,
        total            = CASE WHEN excluded.reported_at IS NULL THEN stored.total ELSE excluded.total END,
        message          = CASE WHEN excluded.reported_at IS NULL THEN stored.message ELSE excluded.message END,
        reported_at      = coalesce(excluded.reported_at, stored.reported_at),
        checkpoint       = coalesce(excluded.checkpoint, stored.checkpoint),
        checkpoint_epoch = coalesce(excluded.checkpoint_epoch, stored.checkpoint_epoch),
        checkpointed_at  = coalesce(excluded.checkpointed_at, stored.checkpointed_at)
    WHERE (stored.epoch, stored.revision) < (excluded.epoch, excluded.revision)
    RETURNING stored.job_id
), streamed AS MATERIALIZED (
    SELECT outbox.stream_report(ours.id, ours.epoch,
        CASE WHEN ours.progress_age IS NOT NULL THEN json_strip_nulls(json_build_object(
            'current', ours.current, 'total', ours.total, 'message', ours.message, 'at', statement_timestamp() - ours.progress_age))::text END,
        (SELECT json_agg(json_build_object('line', (entry ->> 'line')::bigint, 'at', statement_timestamp() - (entry ->> 'age')::interval,
             'level', entry ->> 'level', 'message', entry ->> 'message'))
         FROM jsonb_array_elements(ours.log_lines) AS entry)::text)
    FROM ours
    WHERE ours.streamed
      AND ours.id IN (SELECT saved.job_id FROM saved)
), ring AS MATERIALIZED (
    -- The attempt's own lines show where its first one is; without any, it begins after the newest line of the earlier
    -- attempts.
    SELECT ours.id, ours.epoch, ours.started_at, ours.log_lines, CASE WHEN ours.log_lines IS NOT NULL THEN coalesce(
        ours.log_start,
        (SELECT mod(mod(own.slot - own.line, 200) + 200, 200)
         FROM outbox.job_logs AS own
         WHERE own.job_id = ours.id AND own.epoch = ours.epoch
         LIMIT 1),
        (SELECT mod(newest.slot + 1, 200)
         FROM outbox.job_logs AS newest
         WHERE newest.job_id = ours.id
         ORDER BY newest.epoch DESC, newest.line DESC
         LIMIT 1),
        0) END::smallint AS start
    FROM ours
), logged AS (
    INSERT INTO outbox.job_logs AS stored (job_id, slot, epoch, line, logged_at, level, message)
    SELECT ring.id, mod(ring.start + (entry ->> 'line')::bigint, 200), ring.epoch, (entry ->> 'line')::bigint,
           statement_timestamp() - (entry ->> 'age')::interval, entry ->> 'level', entry ->> 'message'
    FROM ring
    CROSS JOIN LATERAL jsonb_array_elements(ring.log_lines) AS entry
    ON CONFLICT (job_id, slot) DO UPDATE
    SET epoch     = excluded.epoch,
        line      = excluded.line,
        logged_at = excluded.logged_at,
        level     = excluded.level,
        message   = excluded.message
    WHERE (stored.epoch, stored.line) < (excluded.epoch, excluded.line)
), stepped AS (
    INSERT INTO outbox.job_steps (job_id, name, epoch, took, result)
    SELECT ours.id, step ->> 'name', ours.epoch, (step ->> 'took')::interval, decode(step ->> 'result', 'base64')
    FROM ours
    CROSS JOIN LATERAL jsonb_array_elements(ours.steps) AS step
    ON CONFLICT (job_id, name) DO NOTHING
)
    -- No CTE is joined to another: without hash joins (see the dispatcher's sessions) a join takes the product of their
    -- rows. NOT IN is hashed.
SELECT ring.id::uuid AS id, ring.epoch::bigint AS epoch, ring.started_at::timestamptz AS started_at, true::boolean AS recorded, false::boolean AS lost,
       coalesce(ring.start, -1)::smallint AS log_start
FROM ring
WHERE (SELECT count(*) FROM streamed) >= 0 -- this makes the CTE run where there are streamed jobs
UNION ALL
SELECT input.id::uuid, input.epoch::bigint, input.started_at::timestamptz, false::boolean, (held.id IS NULL)::boolean, (-1)::smallint
FROM input
LEFT JOIN outbox.jobs AS held ON held.id = ANY (ARRAY[input.id]) AND held.epoch = input.epoch
    AND coalesce(input.started_at, held.started_at) = held.started_at
WHERE (input.id, input.epoch, input.started_at) NOT IN (SELECT ours.id, ours.epoch, ours.started_at FROM ours)
LIMIT 100000;

-- name: RecordStep :many
-- RecordStep stores a step in the transaction that made its effect. It locks the job's row as Guard does, so that
-- RecordReports leaves the job alone until the transaction ends. It returns nothing if the attempt no longer holds the
-- job, and false if the step is stored already.
WITH ours AS MATERIALIZED (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.id = @id
      AND jobs.epoch = @epoch
      AND coalesce(sqlc.narg(started_at)::timestamptz, jobs.started_at) = jobs.started_at
    FOR UPDATE
), found_by AS (
    INSERT INTO outbox.progress (job_id, epoch, revision)
    SELECT ours.id, @epoch, 0
    FROM ours
    ON CONFLICT (job_id) DO NOTHING
), stepped AS (
    INSERT INTO outbox.job_steps (job_id, name, epoch, took, result)
    SELECT ours.id, @name, @epoch, @took, @result
    FROM ours
    ON CONFLICT (job_id, name) DO NOTHING
    RETURNING job_id
)
SELECT (stepped.job_id IS NOT NULL)::boolean AS stored
FROM ours
LEFT JOIN stepped ON stepped.job_id = ours.id
LIMIT 1;

-- name: FindStep :many
-- FindStep returns the result of a step from an earlier attempt; nothing if the step was not finished.
SELECT result
FROM outbox.job_steps
WHERE job_id = @job_id
  AND name = @name
LIMIT 1;

-- name: FindCheckpoint :many
-- FindCheckpoint returns the checkpoint of a job; nothing if it has none.
SELECT checkpoint::bytea AS checkpoint, coalesce(checkpoint_epoch, 0)::bigint AS epoch, checkpointed_at
FROM outbox.progress
WHERE job_id = @job_id
  AND checkpoint IS NOT NULL
LIMIT 1;

-- name: FindFailedSpans :many
-- FindFailedSpans returns the span of each job's newest failed attempt that had one.
SELECT job.id::uuid AS id, failed.attempt, failed.trace::text AS trace
FROM unnest(@ids::uuid[]) AS job (id)
CROSS JOIN LATERAL (
    SELECT attempts.attempt, attempts.trace
    FROM outbox.attempts
    WHERE attempts.job_id = job.id
      AND attempts.trace IS NOT NULL
    ORDER BY attempts.epoch DESC
    LIMIT 1
) AS failed
LIMIT 100000;

-- name: FindProgress :many
-- FindProgress returns the last progress that a job has reported; nothing if there is none.
SELECT coalesce(current, 0)::bigint AS current, coalesce(total, 0)::bigint AS total, coalesce(message, '')::text AS message, reported_at
FROM outbox.progress
WHERE job_id = @job_id
  AND reported_at IS NOT NULL
LIMIT 1;

-- name: ListReports :many
-- ListReports returns everything that a job has reported: its progress, its checkpoint, its lines and its steps, a row
-- each; lines and steps oldest first. For the result of a step it returns the size, as current: the results of a job
-- may take 250 MiB.
SELECT 'progress'::text AS what, progress.epoch, 0::bigint AS line, ''::text AS name,
       coalesce(progress.message, '')::text AS message, progress.reported_at AS at,
       coalesce(progress.current, 0)::bigint AS current, coalesce(progress.total, 0)::bigint AS total,
       NULL::interval AS took, NULL::bytea AS data
FROM outbox.progress
WHERE progress.job_id = @job_id
UNION ALL
SELECT 'checkpoint', coalesce(progress.checkpoint_epoch, 0), 0, '', '', progress.checkpointed_at, 0, 0, NULL, progress.checkpoint
FROM outbox.progress
WHERE progress.job_id = @job_id
UNION ALL
(
    SELECT 'line', job_logs.epoch, job_logs.line, job_logs.level, job_logs.message, job_logs.logged_at, 0, 0, NULL, NULL
    FROM outbox.job_logs
    WHERE job_logs.job_id = @job_id
    ORDER BY job_logs.epoch, job_logs.line
    LIMIT 200
)
UNION ALL
(
    SELECT 'step', job_steps.epoch, 0, job_steps.name, '', job_steps.finished_at, octet_length(job_steps.result), 0, job_steps.took, NULL
    FROM outbox.job_steps
    WHERE job_steps.job_id = @job_id
    ORDER BY job_steps.finished_at, job_steps.name
    LIMIT 1000
)
ORDER BY what, epoch, line, at, name
LIMIT 1202;

-- name: ListLogs :many
-- ListLogs returns a job's lines after the given one, oldest first.
SELECT epoch, line, logged_at, level, message
FROM outbox.job_logs
WHERE job_id = @job_id
  AND (epoch, line) > (@after_epoch::bigint, @after_line::bigint)
ORDER BY epoch, line
LIMIT 200;

-- name: ListSteps :many
-- ListSteps returns the steps that a job has finished, oldest first; their results only if @with_results is set.
SELECT name, epoch, finished_at, took, octet_length(result)::bigint AS result_bytes,
       (CASE WHEN @with_results::boolean THEN result END)::bytea AS result
FROM outbox.job_steps
WHERE job_id = @job_id
ORDER BY finished_at, name
LIMIT 1000;

-- name: JobExists :one
-- JobExists reports whether there is such a job, open or closed.
SELECT (EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = @id)
    OR EXISTS (SELECT FROM outbox.history WHERE history.id = @id))::boolean;

-- name: StreamRefused :exec
-- StreamRefused stores an event for each streamed job among the attempts whose outcomes were refused.
SELECT outbox.stream_refused(@ids::uuid[], @epochs::bigint[], @attempts::integer[], @outcomes::text[], @worker::text);
