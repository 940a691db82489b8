-- name: ClaimJobs :many
-- ClaimJobs leases up to @max_jobs due jobs of the root tenant to @worker, highest
-- priority first, each priority from the position where it is told to start.
-- Concurrent claimers skip each other's rows instead of waiting. The rows come
-- back in no particular order.
--
-- The jobs are chosen once: ARRAY makes a list of them before the first is written,
-- whatever the plan. A sub-select to join with may be carried out again for each row,
-- and would choose others (docs/adr/0015-chosen-as-a-list.md).
--
-- The locked rows are found again by their place: nobody else can move them. One
-- that was changed between this statement's snapshot and its lock is at a place
-- that the snapshot does not see, and is left alone; whoever changed it so that it is
-- due (an operator, a dispatcher that gave it back) wakes the dispatchers after committing.
UPDATE outbox.jobs
SET status           = 'running',
    attempt          = jobs.attempt + 1,
    epoch            = jobs.epoch + 1,
    lease_owner      = @worker::text,
    -- The database's clock is the only one that leases know; the claim may have
    -- waited, so the lease runs from the moment of the write.
    lease_expires_at = clock_timestamp() + @lease_ttl::interval,
    started_at       = statement_timestamp()
WHERE jobs.ctid = ANY (ARRAY(
    SELECT candidate.place
    FROM (SELECT unnest(@priorities::smallint[])     AS priority,
                 unnest(@from_run_at::timestamptz[]) AS run_at,
                 unnest(@from_id::uuid[])            AS id) AS level
    CROSS JOIN LATERAL (
        -- One level's index range ends at now(), so that rows due tomorrow at a
        -- high priority are never walked over.
        SELECT (jobs).ctid AS place
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.priority = level.priority
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.key IS NULL -- those with one: queries/keys.sql
          AND jobs.tenant_id = '00000000-0000-0000-0000-000000000001' -- other tenants': queries/share.sql
          AND (jobs.run_at, jobs.id) >= (level.run_at, level.id)
          AND jobs.run_at <= now()
          AND jobs.kind = ANY (@kinds::text[])
          AND (jobs.deadline IS NULL OR jobs.deadline > now())
        ORDER BY jobs.run_at, jobs.id
        LIMIT @max_jobs
        FOR UPDATE SKIP LOCKED
    ) AS candidate
    WHERE NOT EXISTS (
        SELECT FROM outbox.queues
        WHERE queues.queue = @queue AND (queues.paused_at IS NOT NULL OR (queues.limited AND NOT @within_limits::boolean)))
    LIMIT @max_jobs
))
RETURNING jobs.id, jobs.tenant_id, jobs.kind, jobs.priority, jobs.attempt, jobs.max_attempts, jobs.lost_leases,
    jobs.epoch, jobs.key, jobs.payload, jobs.content_type, jobs.headers, jobs.timeout, jobs.backoff,
    jobs.run_at, jobs.created_at, jobs.started_at, jobs.deadline, jobs.watched, (jobs).ctid::tid AS place;

-- name: SurveyLevels :many
-- SurveyLevels tells when the next job of each known priority becomes due, and
-- which priorities are in use between the known ones. It reads only the future
-- end of a known priority and only the gaps between them, so that dead index
-- entries of what was claimed long ago are never walked.
--
-- The future begins at @since, when the survey before this one was made: a job
-- that became due after the last claim had looked is told with a wait below zero,
-- and once only. The row without a wait carries the time of this survey. A row
-- with a wait of minus infinity says that there are jobs with a key, if its
-- priority is 0, or of other tenants than root, if it is 1; each is asked for
-- (@keyed, @shared) while none are known of, and reads an index that is empty then. A
-- row with a wait that is not a number says that the queue is paused or limited.
(
    SELECT known.priority::smallint AS priority,
           extract(epoch FROM next_due.run_at - clock_timestamp())::double precision AS due_in_seconds,
           statement_timestamp()::timestamptz AS surveyed_at
    FROM (SELECT unnest(@priorities::smallint[]) AS priority) AS known
    CROSS JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.priority = known.priority
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.key IS NULL
          AND jobs.tenant_id = '00000000-0000-0000-0000-000000000001'
          AND jobs.run_at > least(@since::timestamptz, statement_timestamp())
        ORDER BY jobs.run_at
        LIMIT 1
    ) AS next_due
)
UNION ALL
(
    SELECT unknown.priority::smallint,
           extract(epoch FROM unknown.run_at - clock_timestamp())::double precision,
           statement_timestamp()
    FROM (SELECT unnest(@above::integer[]) AS above, unnest(@below::integer[]) AS below) AS gap
    CROSS JOIN LATERAL (
        SELECT jobs.priority, jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.priority > gap.above
          AND jobs.priority < gap.below
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.key IS NULL
          AND jobs.tenant_id = '00000000-0000-0000-0000-000000000001'
        ORDER BY jobs.priority DESC
        LIMIT 1
    ) AS unknown
)
UNION ALL
(
    SELECT 0::smallint, '-infinity'::double precision, statement_timestamp()
    FROM outbox.jobs
    WHERE @keyed::boolean
      AND jobs.queue = @queue
      AND jobs.key IS NOT NULL
      AND jobs.status IN ('pending', 'retrying')
    LIMIT 1
)
UNION ALL
(
    SELECT 0::smallint, 'NaN'::double precision, statement_timestamp()
    FROM outbox.queues
    WHERE queues.queue = @queue
      AND (queues.paused_at IS NOT NULL OR queues.limited)
    LIMIT 1
)
UNION ALL
(
    SELECT 1::smallint, '-infinity'::double precision, statement_timestamp()
    FROM outbox.jobs
    WHERE @shared::boolean
      AND jobs.queue = @queue
      AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
      AND jobs.key IS NULL
      AND jobs.status IN ('pending', 'retrying')
    LIMIT 1
)
UNION ALL
SELECT 0::smallint, 'infinity'::double precision, statement_timestamp()
LIMIT 1000;

-- name: ReturnOrphans :execrows
-- ReturnOrphans gives back the jobs of a queue that @worker holds without knowing
-- it: their claim was cut off after it had committed. No attempt is spent. Leases
-- that have lapsed are the reaper's, and so is what somebody has cancelled.
WITH orphans AS MATERIALIZED (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status = 'running'
      AND jobs.lease_expires_at > statement_timestamp()
      AND jobs.queue = @queue
      AND jobs.lease_owner = @worker::text
      AND jobs.cancel_requested_at IS NULL
      AND jobs.id NOT IN (SELECT unnest(@held::uuid[])) -- hashed; compared one by one, thousands would take a second
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox.jobs
SET status           = 'pending',
    epoch            = jobs.epoch + 1,
    attempt          = jobs.attempt - 1,
    lease_owner      = NULL,
    lease_expires_at = NULL
FROM orphans
WHERE jobs.id = ANY (ARRAY[orphans.id]);
