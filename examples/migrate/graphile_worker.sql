-- Moves the jobs of graphile-worker (0.16 or newer) that wait into Posthaste: each is in one of the two at any time.
-- Jobs that are locked stay with its workers. Up to 10 000 jobs each time, until it returns 0. A queue_name, which runs
-- one job at a time, is a key here: without one, jobs run at the same time.
WITH moved AS (
    DELETE FROM graphile_worker._private_jobs
    WHERE id IN (
        SELECT id FROM graphile_worker._private_jobs
        WHERE locked_at IS NULL AND is_available
        ORDER BY id
        LIMIT 10000
        FOR UPDATE SKIP LOCKED
    )
    RETURNING *
)
SELECT count(outbox.enqueue(
    (SELECT identifier FROM graphile_worker._private_tasks AS task WHERE task.id = moved.task_id),
    payload::jsonb,
    priority        => -priority,      -- there the lowest number is the most urgent
    run_at          => run_at,
    max_attempts    => greatest(max_attempts - attempts, 1),
    key             => (SELECT queue_name FROM graphile_worker._private_job_queues AS queue WHERE queue.id = moved.job_queue_id),
    headers         => jsonb_build_object('graphile-id', id::text),
    notify          => false
))
FROM moved;
