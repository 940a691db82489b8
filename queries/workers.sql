-- name: ShowWorker :exec
-- ShowWorker records that a dispatcher is running. It does not wait for the disk: the next one comes soon.
WITH hurry AS (
    SELECT set_config('synchronous_commit', 'off', true)
)
INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing)
SELECT @worker, @version, @queues::text[], @concurrency::integer[], @kinds::text[], @hearing
FROM hurry
ON CONFLICT (worker) DO UPDATE
SET seen_at = statement_timestamp(),
    hearing = excluded.hearing;

-- name: RemoveWorker :exec
-- RemoveWorker records that a dispatcher has stopped.
DELETE FROM outbox.workers
WHERE worker = @worker;

-- name: TrimWorkers :execrows
-- TrimWorkers deletes dispatchers that were last seen more than @keep ago.
DELETE FROM outbox.workers
WHERE seen_at < statement_timestamp() - @keep::interval;

-- name: ListWorkers :many
-- ListWorkers returns the dispatchers that were seen recently, by name, and the jobs that each is running now, except
-- those whose leases lapsed more than ten minutes ago (see ExplainWaits).
SELECT workers.worker, workers.version, workers.queues, workers.concurrency, workers.kinds, workers.hearing,
       workers.started_at, workers.seen_at,
       extract(epoch FROM statement_timestamp() - workers.seen_at)::double precision AS seen_seconds_ago,
       coalesce(busy.jobs, 0)::bigint AS running
FROM outbox.workers
LEFT JOIN (
    SELECT found.lease_owner, count(*) AS jobs
    FROM (
        SELECT jobs.lease_owner
        FROM outbox.jobs
        WHERE jobs.status = 'running'
          AND jobs.lease_expires_at > statement_timestamp() - interval '10 minutes'
        UNION ALL
        SELECT jobs.lease_owner
        FROM outbox.lease_extensions AS beside
        JOIN outbox.jobs ON jobs.id = ANY (ARRAY[beside.job_id]) AND jobs.epoch = beside.epoch
        WHERE jobs.status::text = 'running'
          AND jobs.lease_expires_at <= statement_timestamp() - interval '10 minutes'
    ) AS found
    GROUP BY found.lease_owner
) AS busy ON busy.lease_owner = workers.worker
ORDER BY workers.worker
LIMIT 10000;

-- name: KindsWithoutHandler :many
-- KindsWithoutHandler returns the kinds of due jobs for which no recently seen dispatcher has a handler in the job's
-- queue, how many such jobs there are, and since when the oldest is due. Messages that a sink has not accepted are not
-- due, as in SampleDepth.
SELECT waiting.queue, waiting.kind, waiting.jobs, waiting.oldest
FROM (
    SELECT jobs.queue, jobs.kind, count(*) AS jobs, min(jobs.run_at)::timestamptz AS oldest
    FROM outbox.jobs
    WHERE jobs.status IN ('pending', 'retrying')
      AND jobs.run_at <= statement_timestamp()
      AND jobs.kind NOT LIKE 'relay:%'
    GROUP BY jobs.queue, jobs.kind
) AS waiting
WHERE NOT EXISTS (
    SELECT FROM outbox.workers
    WHERE workers.seen_at > statement_timestamp() - @fresh::interval
      AND waiting.queue = ANY (workers.queues)
      AND waiting.kind = ANY (workers.kinds))
ORDER BY waiting.oldest
LIMIT 100;

-- name: ReadFloor :one
-- ReadFloor returns the oldest release whose builds work with this schema; migrations/state.go stores it.
SELECT substr(schema_files.name, length('floor/') + 1)::text AS release, schema_files.revision
FROM outbox.schema_files
WHERE schema_files.name LIKE 'floor/%'
ORDER BY schema_files.revision DESC
LIMIT 1;
