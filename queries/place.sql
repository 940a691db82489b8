-- name: SettleInPlace :many
-- SettleInPlace is SettleSucceeded for jobs without results whose rows are where their claims left them: one scan of
-- their places finds them, and no index is read. Rows that have moved since (their leases were extended, or the jobs
-- are watched or were cancelled) do not match, and SettleSucceeded settles them. A place is a hint, and may belong to
-- another job by now: (id, epoch) is the whole fence here, too. IS TRUE keeps the condition a lookup in a hash table of
-- the given pairs: as a join it would leave the planner a choice.
--
-- It waits for rows in the order of their places, as no other statement does. So it gives up before a wait can become a
-- deadlock (docs/adr/0017-settled-as-a-list.md).
WITH done AS (
    DELETE FROM outbox.jobs
    WHERE jobs.ctid = ANY (@places::tid[])
      AND ((jobs.id, jobs.epoch) IN (SELECT unnest(@ids::uuid[]), unnest(@epochs::bigint[]))) IS TRUE
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND (SELECT set_config('lock_timeout', '100ms', true)) IS NOT NULL
    RETURNING {{jobs}}
)
INSERT INTO outbox.history ({{history}})
SELECT {{closed "'succeeded'"}}
FROM done
RETURNING id;

-- name: SettleResultsInPlace :many
-- SettleResultsInPlace is SettleInPlace for jobs of which some have results. It goes in the order of their ids.
--
-- It compares id with the function behind =, which no plan can look up in an index: for an empty table the server
-- assumes that the primary key costs as much as the place.
WITH input AS MATERIALIZED (
    SELECT unnest(@places::tid[]) AS place, unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@results::bytea[]) AS result
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.ctid = input.place
      AND uuid_eq(jobs.id, input.id)
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
    RETURNING {{jobs}}, (input).result AS result
)
INSERT INTO outbox.history ({{history}}, result)
SELECT {{closed "'succeeded'"}}, result
FROM done
RETURNING id;

-- name: SettleStreamedInPlace :many
-- SettleStreamedInPlace is SettleResultsInPlace for streamed jobs: it stores their events with one INSERT, where a
-- trigger would store each separately, and counts them.
WITH input AS MATERIALIZED (
    SELECT unnest(@places::tid[]) AS place, unnest(@ids::uuid[]) AS id, unnest(@epochs::bigint[]) AS epoch, unnest(@results::bytea[]) AS result
), done AS (
    DELETE FROM outbox.jobs
    USING input
    WHERE jobs.ctid = input.place
      AND uuid_eq(jobs.id, input.id)
      AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
      AND jobs.epoch = input.epoch
      AND (SELECT outbox.counts_events())
    RETURNING {{jobs}}, (input).result AS result, clock_timestamp() AS finished_at
), stored AS (
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    SELECT outbox.job_event_id(id, streamed + 1, epoch, 'completed'), tenant_id, 'job.completed', id, 'application/json',
           convert_to(outbox.job_event_fields(id, tenant_id, 'completed', streamed + 1, status::text, 'succeeded', epoch, attempt, queue, kind, key,
               finished_at, CASE WHEN lost_leases > 0 THEN ',"lost_leases":' || lost_leases::text END)
               || coalesce(outbox.job_event_result(result), '') || '}', 'UTF8'),
           outbox.job_event_headers(headers)
    FROM done
    WHERE streamed IS NOT NULL
)
INSERT INTO outbox.history ({{history}}, result, finished_at)
SELECT {{counted "'succeeded'"}}, result, finished_at
FROM done
RETURNING id;
