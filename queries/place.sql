-- name: SettleInPlace :many
-- SettleInPlace is SettleSucceeded for jobs without results whose rows are where their claims left them: one scan of
-- their places finds them, and no index is read. Rows that have moved since (their leases were extended, or the jobs
-- are watched or were cancelled) do not match, and SettleSucceeded settles them. A place is a hint, and may belong to
-- another job by now: (id, epoch, started_at) is the whole fence here, too. IS TRUE keeps the condition a lookup in a
-- hash table of the given fences: as a join it would leave the planner a choice.
--
-- It waits for rows in the order of their places, as no other statement does. So it gives up before a wait can become a
-- deadlock (docs/adr/0017-settled-as-a-list.md).
WITH done AS (
    DELETE FROM outbox.jobs
    WHERE jobs.ctid = ANY (@places::tid[])
      AND ((jobs.id, jobs.epoch, jobs.started_at) IN (
          SELECT unnest(@ids::uuid[]), unnest(@epochs::bigint[]), unnest(@starts::timestamptz[]))) IS TRUE
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
    RETURNING {{jobs}}
)
INSERT INTO outbox.history ({{history}})
SELECT {{closed "'succeeded'"}}
FROM done
RETURNING id;
