-- name: ListDeadLetters :many
-- ListDeadLetters returns up to @max_rows dead letters with an id between @after and @before, newest first, without
-- payloads. An empty text or a NULL matches any; the bounds of times are -infinity and infinity. GroupDeadLetters and
-- FindDeadLetters have the same filter.
SELECT {{open "jobs"}},
       coalesce(jobs.failed_at, jobs.started_at, jobs.created_at)::timestamptz AS failed_at, coalesce(jobs.error_fingerprint, '')::text AS fingerprint
FROM outbox.jobs
WHERE jobs.status IN ('failed', 'dead')
  AND jobs.id > @after AND jobs.id < @before
  AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
  AND (@kind::text = '' OR jobs.kind = @kind)
  AND (@queue::text = '' OR jobs.queue = @queue)
  AND (@status::text = '' OR jobs.status::text = @status)
  AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
  AND (@key::text = '' OR jobs.key = @key)
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR jobs.tenant_id = sqlc.narg(tenant_id))
  AND jobs.created_at >= @created_since AND jobs.created_at < @created_until
  AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) >= @failed_since
  AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) < @failed_until
ORDER BY jobs.id DESC, jobs.error_fingerprint DESC -- in the order of jobs_dead_letter_idx
LIMIT @max_rows;

-- name: GroupDeadLetters :many
-- GroupDeadLetters counts the dead letters that failed in the same way, with the newest of each group as an example.
-- Groups that have grown within @growing come first, then the largest.
WITH letter AS MATERIALIZED (
    SELECT jobs.id, jobs.kind, coalesce(jobs.last_error_code, '') AS error_code, coalesce(jobs.error_fingerprint, '') AS fingerprint,
           coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) AS failed_at
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND jobs.id > @after AND jobs.id < @before
      AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
      AND (@status::text = '' OR jobs.status::text = @status)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND (@key::text = '' OR jobs.key = @key)
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR jobs.tenant_id = sqlc.narg(tenant_id))
      AND jobs.created_at >= @created_since AND jobs.created_at < @created_until
      AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) >= @failed_since
      AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) < @failed_until
    ORDER BY jobs.id, jobs.error_fingerprint
), alike AS MATERIALIZED (
    SELECT letter.fingerprint, letter.kind, letter.error_code, count(*) AS jobs, min(letter.failed_at) AS oldest, max(letter.failed_at) AS newest,
           max(letter.failed_at) > statement_timestamp() - @growing::interval AS grows,
           max(letter.id::text COLLATE "C")::uuid AS example -- Postgres has max(uuid) since 18
    FROM letter
    GROUP BY letter.fingerprint, letter.kind, letter.error_code
    ORDER BY grows DESC, jobs DESC, letter.kind, letter.fingerprint
    LIMIT @max_rows
)
SELECT alike.fingerprint::text AS fingerprint, alike.kind, alike.error_code::text AS error_code, alike.jobs,
       alike.oldest::timestamptz AS oldest, alike.newest::timestamptz AS newest, alike.grows::boolean AS grows,
       alike.example::uuid AS example, coalesce(jobs.last_error_message, '')::text AS message
FROM alike
LEFT JOIN outbox.jobs ON jobs.id = ANY (ARRAY[alike.example])
ORDER BY alike.grows DESC, alike.jobs DESC, alike.kind, alike.fingerprint
LIMIT @max_rows;

-- name: CountDeadLetters :one
-- CountDeadLetters counts the dead letters with an id between @after and @before that match the filter. It reads all of
-- them, also those that row-level security hides: see FindReachAbove.
WITH letter AS MATERIALIZED (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND jobs.id > @after AND jobs.id < @before
      AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
      AND (@status::text = '' OR jobs.status::text = @status)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND (@key::text = '' OR jobs.key = @key)
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR jobs.tenant_id = sqlc.narg(tenant_id))
      AND jobs.created_at >= @created_since AND jobs.created_at < @created_until
      AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) >= @failed_since
      AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) < @failed_until
    ORDER BY jobs.id, jobs.error_fingerprint -- in the order of jobs_dead_letter_idx
)
SELECT count(*) AS letters
FROM letter;

-- name: SplitDeadLetters :many
-- SplitDeadLetters counts the newest dead letters that match the filter, @max_seen at most, by kind, queue, tenant and
-- error code, and those of them whose deadline has passed. It returns the largest @max_rows parts.
WITH letter AS MATERIALIZED (
    SELECT jobs.kind, jobs.queue, jobs.tenant_id, coalesce(jobs.last_error_code, '') AS error_code, jobs.deadline
    FROM outbox.jobs
    WHERE jobs.status IN ('failed', 'dead')
      AND jobs.id > @after AND jobs.id < @before
      AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
      AND (@kind::text = '' OR jobs.kind = @kind)
      AND (@queue::text = '' OR jobs.queue = @queue)
      AND (@status::text = '' OR jobs.status::text = @status)
      AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
      AND (@key::text = '' OR jobs.key = @key)
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR jobs.tenant_id = sqlc.narg(tenant_id))
      AND jobs.created_at >= @created_since AND jobs.created_at < @created_until
      AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) >= @failed_since
      AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) < @failed_until
    ORDER BY jobs.id DESC
    LIMIT @max_seen
)
SELECT letter.kind, letter.queue, letter.tenant_id, letter.error_code, count(*) AS jobs,
       count(*) FILTER (WHERE letter.deadline <= statement_timestamp()) AS late
FROM letter
GROUP BY letter.kind, letter.queue, letter.tenant_id, letter.error_code
ORDER BY jobs DESC, letter.kind, letter.queue, letter.tenant_id, letter.error_code
LIMIT @max_rows;

-- name: FindDeadLetters :many
-- FindDeadLetters returns up to @max_rows dead letters with an id between @after and @before that match the filter,
-- oldest first, for an act on many. It may read all of them, also those that row-level security hides: see
-- FindReachAbove. The epoch shows the act that the job has not changed since, and the size how many fit into a
-- statement.
SELECT jobs.id, jobs.epoch, octet_length(jobs.payload) AS payload_bytes
FROM outbox.jobs
WHERE jobs.status IN ('failed', 'dead')
  AND jobs.id > @after AND jobs.id < @before
  AND (@fingerprint::text = '' OR jobs.error_fingerprint = @fingerprint)
  AND (@kind::text = '' OR jobs.kind = @kind)
  AND (@queue::text = '' OR jobs.queue = @queue)
  AND (@status::text = '' OR jobs.status::text = @status)
  AND (@error_code::text = '' OR jobs.last_error_code = @error_code)
  AND (@key::text = '' OR jobs.key = @key)
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR jobs.tenant_id = sqlc.narg(tenant_id))
  AND jobs.created_at >= @created_since AND jobs.created_at < @created_until
  AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) >= @failed_since
  AND coalesce(jobs.failed_at, jobs.started_at, jobs.created_at) < @failed_until
ORDER BY jobs.id, jobs.error_fingerprint -- in the order of jobs_dead_letter_idx
LIMIT @max_rows;

-- name: ReplayJobs :many
-- ReplayJobs makes dead letters pending again with all their attempts, in the given order, each due @spacing after the
-- one before, and wakes the dispatchers. It moves only jobs that are still as they were found, (id, epoch), and returns
-- their ids.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, generate_series(0, cardinality(@ids::uuid[]) - 1) AS place
), found AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch, jobs.status, jobs.attempt, jobs.lost_leases, jobs.last_error_code, input.place
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
    WHERE jobs.status::text IN ('failed', 'dead') -- as text: there is an index on these, see settle.sql
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp()) -- it would only expire, as in RetryJob
    ORDER BY input.id
    FOR UPDATE
), moved AS (
    UPDATE outbox.jobs
    SET status            = 'pending',
        epoch             = jobs.epoch + 1,
        attempt           = 0,
        lost_leases       = 0,
        run_at            = CASE
            WHEN @spacing::interval = interval '0' THEN least(jobs.run_at, statement_timestamp())
            ELSE statement_timestamp() + found.place * @spacing::interval
        END,
        unavailable_since = NULL,
        failed_at         = NULL,
        error_fingerprint = NULL
    FROM found
    WHERE jobs.id = ANY (ARRAY[found.id])
    RETURNING jobs.id, jobs.tenant_id, jobs.queue, jobs.status, jobs.run_at
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.replay', moved.tenant_id, moved.id, moved.queue,
        jsonb_build_object('status', found.status, 'attempt', found.attempt, 'lost_leases', found.lost_leases, 'error_code', found.last_error_code),
        jsonb_build_object('status', moved.status, 'attempt', 0, 'run_at', moved.run_at)
    FROM moved
    JOIN found ON found.id = moved.id
), woken AS MATERIALIZED (
    SELECT pg_notify('outbox_jobs', '') AS silent
    FROM (SELECT FROM moved LIMIT 1) AS any_moved
)
SELECT moved.id
FROM moved
LEFT JOIN woken ON woken.silent IS NULL
LIMIT 100000;

-- name: ReplayEdited :many
-- ReplayEdited makes a dead letter pending again with another payload, if it is still as it was found, and wakes the
-- dispatchers. The audit keeps up to @kept_bytes of the old payload, and in any case what distinguishes the two. With
-- @forget, the job's steps and checkpoint, which belong to the old payload, are deleted.
WITH found AS MATERIALIZED (
    SELECT jobs.id, jobs.epoch, jobs.status, jobs.attempt, jobs.lost_leases, jobs.last_error_code, jobs.payload
    FROM outbox.jobs
    WHERE jobs.id = @id
      AND jobs.epoch = @epoch
      AND jobs.status IN ('failed', 'dead')
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
    FOR UPDATE
), moved AS (
    UPDATE outbox.jobs
    SET status            = 'pending',
        epoch             = jobs.epoch + 1,
        attempt           = 0,
        lost_leases       = 0,
        payload           = @payload,
        run_at            = least(jobs.run_at, statement_timestamp()),
        unavailable_since = NULL,
        failed_at         = NULL,
        error_fingerprint = NULL
    FROM found
    WHERE jobs.id = ANY (ARRAY[found.id])
    RETURNING jobs.id, jobs.tenant_id, jobs.queue, jobs.status, jobs.run_at, jobs.payload
), forgotten AS (
    DELETE FROM outbox.job_steps
    USING moved
    WHERE @forget::boolean
      AND job_steps.job_id = ANY (ARRAY[moved.id])
    RETURNING 1
), begun_anew AS (
    UPDATE outbox.progress
    SET checkpoint = NULL, checkpoint_epoch = NULL, checkpointed_at = NULL
    FROM moved
    WHERE @forget::boolean
      AND progress.job_id = ANY (ARRAY[moved.id])
      AND progress.checkpoint IS NOT NULL
    RETURNING 1
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.replay', moved.tenant_id, moved.id, moved.queue,
        jsonb_build_object('status', found.status, 'attempt', found.attempt, 'lost_leases', found.lost_leases, 'error_code', found.last_error_code,
            'payload_bytes', octet_length(found.payload), 'payload_sha256', encode(sha256(found.payload), 'hex'),
            'payload_base64', CASE WHEN octet_length(found.payload) <= @kept_bytes::integer
                THEN translate(encode(found.payload, 'base64'), E'\n', '') END),
        jsonb_build_object('status', moved.status, 'attempt', 0, 'run_at', moved.run_at,
            'payload_bytes', octet_length(moved.payload), 'payload_sha256', encode(sha256(moved.payload), 'hex'))
        || CASE WHEN @forget::boolean
            THEN jsonb_build_object('forgotten_steps', (SELECT count(*) FROM forgotten), 'forgotten_checkpoint', EXISTS (SELECT FROM begun_anew))
            ELSE '{}' END
    FROM moved
    JOIN found ON found.id = moved.id
)
SELECT moved.id, ((pg_notify('outbox_jobs', '')) IS NULL)::boolean AS silent
FROM moved
LIMIT 1;

-- name: DismissJobs :many
-- DismissJobs moves dead letters that are still as they were found, (id, epoch), into the history and returns their
-- ids.
WITH input AS MATERIALIZED (
    SELECT unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch
), dismissed AS MATERIALIZED (
    SELECT jobs.*
    FROM input
    JOIN outbox.jobs ON jobs.id = ANY (ARRAY[input.id]) AND jobs.epoch = input.epoch
    WHERE jobs.status::text IN ('failed', 'dead') -- as text: there is an index on these, see settle.sql
    ORDER BY input.id
    FOR UPDATE
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'job.dismiss', tenant_id, id, queue,
        jsonb_build_object('status', status, 'attempt', attempt, 'lost_leases', lost_leases, 'error_code', last_error_code),
        jsonb_build_object('status', 'dismissed')
    FROM dismissed
), freed AS ( -- their keys move on when this commits: move_freed_key_on.sql
    INSERT INTO outbox.freed_keys (tenant_id, queue, key)
    SELECT DISTINCT tenant_id, queue, key
    FROM dismissed
    WHERE key IS NOT NULL
)
SELECT outbox.close_jobs(array_agg(id), array_agg(epoch), array_agg('dismissed'::outbox.job_status))::uuid AS id
FROM dismissed
HAVING count(*) > 0;
