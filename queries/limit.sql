-- name: QueueIsPaused :one
-- QueueIsPaused reports whether a queue is paused. Dispatchers ask before they start a job that was claimed a while
-- ago.
SELECT EXISTS (
    SELECT FROM outbox.queues
    WHERE queues.queue = @queue AND queues.paused_at IS NOT NULL);

-- name: BoundClaim :exec
-- BoundClaim bounds how long a limited claim waits for another one, and how long the server waits for a claimer that
-- has stopped in the middle of one: no other process can claim from the queue meanwhile.
SELECT set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '1s', true);

-- name: MakeUsage :exec
-- MakeUsage inserts the row that HoldQueue locks, if it does not exist yet. It is never removed.
INSERT INTO outbox.queue_usage (queue)
VALUES (@queue)
ON CONFLICT DO NOTHING;

-- name: HoldQueue :many
-- HoldQueue locks the row of a queue's usage until the transaction ends, so that a limited queue has one claim at a
-- time. MakeUsage has made the row.
--
-- The next statement looks at the running jobs, not this one: under READ COMMITTED a statement sees what was committed
-- when it began, and this one may have waited since.
--
--	A   hold, look: 1 of 2 runs, start one, commit
--	B         hold, waits                     … look
--
-- If B looked in the same statement that it holds with, it would not see the job that A started, and would start a
-- third.
SELECT queue_usage.queue
FROM outbox.queue_usage
WHERE queue_usage.queue = @queue
LIMIT 1
FOR UPDATE;

-- name: MeasureQueue :many
-- MeasureQueue returns the limits that an operator has set for a queue and how much of them is used. It returns no row
-- if nothing is set.
--
-- It counts jobs that limited claims have started and that still run. It finds them by their ids, because every job of
-- every queue would pay for an index of all running jobs by queue. After a limit has been set there are others: claims
-- that were under way then, and did not check it, may commit for as long as a server continues a statement (10 s). So
-- for half a minute after that every running job is looked at.
SELECT (queues.paused_at IS NOT NULL)::boolean AS paused,
       queues.max_running, queues.rate,
       coalesce(extract(epoch FROM queues.rate_interval), 0)::double precision AS rate_seconds,
       clock_timestamp()::timestamptz AS now,
       (counting.whole)::boolean AS counted_whole,
       coalesce(every_one.ids, started.ids, '{}')::uuid[] AS running,
       queue_usage.start_times, queue_usage.start_counts
FROM outbox.queues
JOIN outbox.queue_usage ON queue_usage.queue = queues.queue
CROSS JOIN LATERAL (
    SELECT queues.max_running IS NOT NULL
           AND coalesce(queue_usage.counted_at < coalesce(queues.limited_at, '-infinity') + interval '30 seconds', true) AS whole
) AS counting
LEFT JOIN LATERAL (
    SELECT array_agg(jobs.id) AS ids
    FROM outbox.jobs
    WHERE counting.whole
      AND jobs.queue = @queue
      AND jobs.status = 'running'
) AS every_one ON true
LEFT JOIN LATERAL (
    -- The filter checks the found rows for running: as a condition it would let the planner scan the index of running
    -- jobs instead of the primary key.
    SELECT array_agg(jobs.id) FILTER (WHERE jobs.status = 'running' AND jobs.queue = @queue) AS ids
    FROM outbox.jobs
    WHERE NOT counting.whole
      AND jobs.id = ANY (queue_usage.running)
) AS started ON true
WHERE queues.queue = @queue
LIMIT 1;

-- name: NoteStarts :exec
-- NoteStarts stores the usage after a limited claim.
UPDATE outbox.queue_usage
SET running      = coalesce(@running::uuid[], '{}'),
    counted_at   = CASE WHEN @counted_whole::boolean THEN @counted_at::timestamptz ELSE counted_at END,
    start_times  = coalesce(@start_times::timestamptz[], '{}'),
    start_counts = coalesce(@start_counts::integer[], '{}')
WHERE queue = @queue;
