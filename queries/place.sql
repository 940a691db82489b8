-- name: SettleInPlace :many
-- SettleInPlace is SettleSucceeded for jobs without results that are where their claims
-- have left them: they are one scan of their places, and no index is asked. Those that have
-- moved since (their leases were extended, or somebody watches them or wants them
-- cancelled) are not matched, and left to SettleSucceeded. The place is a hint, which may
-- be that of another job by now: (id, epoch) is the whole fence here, too. IS TRUE keeps it
-- a condition that is looked up in a table of what was asked for: as a join there would be
-- something to choose.
--
-- It waits for rows in the order of their places, as nobody else does. So it does not wait
-- for as long as makes a deadlock (docs/adr/0017-settled-as-a-list.md).
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
-- SettleResultsInPlace is SettleInPlace for jobs of which some have results, in the order
-- of their ids.
--
-- id is compared by the function behind =, which no plan can look up in an index: of an
-- empty table the server believes that the primary key costs as much as the place.
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
-- SettleStreamedInPlace is SettleResultsInPlace for streamed jobs: it stores their events with
-- one INSERT, where a trigger would store each by itself, and counts them.
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
