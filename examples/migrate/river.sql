-- Moves the jobs of River that wait into Posthaste, in one statement: each is in one of the two at any time. Jobs that
-- run stay with River's workers; run it again when they are done, or have failed. Up to 10 000 jobs each time, until it
-- returns 0. Tasks of River Pro's workflows stay, too: nothing here starts a task when those before it are done.
WITH moved AS (
    DELETE FROM river_job
    WHERE id IN (
        SELECT id FROM river_job
        WHERE state IN ('available', 'scheduled', 'retryable', 'pending')
            AND NOT metadata ? 'workflow_id'
        ORDER BY id
        LIMIT 10000
        FOR UPDATE SKIP LOCKED -- River's workers are taking others
    )
    RETURNING *
)
SELECT count(outbox.enqueue(
    kind,
    args,
    queue           => queue,
    priority        => 1 - priority,   -- River: 1 is the most urgent, 4 the least; here the highest is
    run_at          => scheduled_at,
    max_attempts    => greatest(max_attempts - attempt, 1),
    hold            => state = 'pending', -- parked until somebody releases it, there and here
    headers         => jsonb_build_object('river-id', id::text),
    notify          => false           -- dispatchers poll for them; one notification a job would be too many
))
FROM moved;
