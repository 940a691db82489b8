-- name: QueueIsPaused :one
-- QueueIsPaused is asked before a job starts that was claimed a while ago.
SELECT EXISTS (
    SELECT FROM outbox.queues
    WHERE queues.queue = @queue AND queues.paused_at IS NOT NULL);

-- name: BoundClaim :exec
-- BoundClaim bounds how long a limited claim waits for another one, and how long
-- the server waits for a claimer that has stopped in the middle of one: nobody else
-- can claim of the queue meanwhile.
SELECT set_config('lock_timeout', '2s', true), set_config('idle_in_transaction_session_timeout', '1s', true);

-- name: HoldQueue :many
-- HoldQueue locks what is known of a queue's usage until the transaction ends: one
-- claim of a limited queue at a time. No row: nobody has made it yet.
--
-- What runs is looked at by the next statement, not by this one: under READ
-- COMMITTED a statement sees what was committed when it began, and this one may
-- have waited since.
--
--	A   hold, look: 1 of 2 runs, start one, commit
--	B         hold, waits                     … look
--
-- If B's look were part of its hold it would not see what A started, and so start
-- a third.
SELECT queue_usage.queue
FROM outbox.queue_usage
WHERE queue_usage.queue = @queue
LIMIT 1
FOR UPDATE;

-- name: MakeUsage :exec
-- MakeUsage makes the row that HoldQueue locks.
INSERT INTO outbox.queue_usage (queue)
VALUES (@queue)
ON CONFLICT DO NOTHING;

-- name: MeasureQueue :many
-- MeasureQueue tells what an operator has set for a queue and how much of it is
-- used. No row: nothing is set.
--
-- The jobs that count are those that limited claims have started and that still
-- run: looked up by their ids, because an index of all running jobs by queue would
-- be paid for by every job of every queue. After a limit has been set there are
-- others: claims that were under way then, with no look at it, may commit for as
-- long as a server goes on with a statement (10 s). So until half a minute has
-- gone by, every running job is looked at.
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
    -- That they run is asked of what was found: among the conditions it would let
    -- the planner scan the index of running jobs instead of the primary key.
    SELECT array_agg(jobs.id) FILTER (WHERE jobs.status = 'running' AND jobs.queue = @queue) AS ids
    FROM outbox.jobs
    WHERE NOT counting.whole
      AND jobs.id = ANY (queue_usage.running)
) AS started ON true
WHERE queues.queue = @queue
LIMIT 1;

-- name: NoteStarts :exec
-- NoteStarts stores what a limited claim knows after it has claimed.
UPDATE outbox.queue_usage
SET running      = coalesce(@running::uuid[], '{}'),
    counted_at   = CASE WHEN @counted_whole::boolean THEN @counted_at::timestamptz ELSE counted_at END,
    start_times  = coalesce(@start_times::timestamptz[], '{}'),
    start_counts = coalesce(@start_counts::integer[], '{}')
WHERE queue = @queue;
