-- name: TryMeasureLock :one
-- TryMeasureLock makes this transaction the only one that measures, unless another one is.
SELECT pg_try_advisory_xact_lock(hashtextextended('outbox.measure', 0));

-- name: ForgetLater :exec
-- ForgetLater deletes counts for times more than an hour from now. They were made before the server's clock was set
-- back, and nothing would be counted until that time comes again.
WITH minutes AS (
    DELETE FROM outbox.measured
    WHERE measured.at > statement_timestamp() + interval '1 hour'
), parts AS (
    DELETE FROM outbox.measures
    WHERE measures.at > statement_timestamp() + interval '1 hour'
), sums AS (
    DELETE FROM outbox.measures_hours
    WHERE measures_hours.at > statement_timestamp() + interval '1 hour'
)
DELETE FROM outbox.measured_hours
WHERE measured_hours.at > statement_timestamp() + interval '1 hour';

-- name: NextMeasure :one
-- NextMeasure returns the minute that ended @lag ago or earlier, and where the count up to its end begins: at the end
-- of the last count or, if that is long ago or there was none, a minute before. It is due unless it was counted.
-- hour_over reports that an hour is over by then that SumHour has not summed. Send it as a statement of its own once
-- the lock is held: its snapshot then has what the holder before committed.
SELECT minute.until_at::timestamptz AS until_at,
       (CASE WHEN latest.at >= minute.until_at - interval '15 minutes' THEN latest.at
           ELSE minute.until_at - interval '1 minute' END)::timestamptz AS since,
       coalesce(latest.at < minute.until_at, true)::boolean AS due,
       coalesce(date_trunc('hour', unsummed.at - interval '1 microsecond', 'UTC') + interval '1 hour' <= minute.until_at, false)::boolean AS hour_over
FROM (SELECT date_trunc('minute', statement_timestamp() - @lag::interval) AS until_at) AS minute
LEFT JOIN (SELECT max(measured.at) AS at FROM outbox.measured) AS latest ON true
LEFT JOIN (
    SELECT min(measured.at) AS at
    FROM outbox.measured
    WHERE measured.at > (SELECT coalesce(max(measured_hours.at), '-infinity') FROM outbox.measured_hours)
) AS unsummed ON true;

-- name: Measure :one
-- Measure counts what is open, and what happened from @since to @until, by tenant, queue and kind: the @max_rows parts
-- with the most open jobs and events, and the others together. It reads all open jobs, and those that have closed since
-- @since.
--
-- A job counts as enqueued in the minute of its created_at, wherever it is by now: one snapshot has both tables. A job
-- whose transaction commits later than the count is not counted.
--
-- The primary key of outbox.measured refuses a second count of a minute, should the lock ever fail to.
WITH open AS (
    SELECT jobs.tenant_id, jobs.queue, jobs.kind,
           count(*) FILTER (WHERE jobs.status IN ('pending', 'retrying', 'blocked')) AS waiting,
           count(*) FILTER (WHERE jobs.status = 'running') AS running,
           count(*) FILTER (WHERE jobs.status IN ('failed', 'dead')) AS dead_letters,
           count(*) FILTER (WHERE jobs.created_at >= @since::timestamptz AND jobs.created_at < @until::timestamptz) AS enqueued
    FROM outbox.jobs
    GROUP BY jobs.tenant_id, jobs.queue, jobs.kind
), closed AS (
    SELECT history.tenant_id, history.queue, history.kind,
           CASE WHEN history.started_at IS NOT NULL THEN 1 + width_bucket(extract(epoch FROM history.started_at - history.run_at)::float8,
               ARRAY[0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
                   16.384, 32.768, 65.536, 131.072, 262.144, 524.288, 1048.576, 2097.152, 4194.304]::float8[])
               END AS bucket,
           count(*) FILTER (WHERE history.finished_at < @until::timestamptz) AS jobs,
           count(*) FILTER (WHERE history.finished_at < @until::timestamptz AND history.status = 'succeeded') AS succeeded,
           count(*) FILTER (WHERE history.created_at >= @since::timestamptz AND history.created_at < @until::timestamptz) AS enqueued
    FROM outbox.history
    WHERE history.finished_at >= @since::timestamptz
    GROUP BY 1, 2, 3, 4
), failing AS (
    -- A job that is not open any more has closed after its attempt failed.
    SELECT coalesce(jobs.tenant_id, done.tenant_id) AS tenant_id, coalesce(jobs.queue, done.queue) AS queue, coalesce(jobs.kind, done.kind) AS kind,
           count(*) AS failed
    FROM outbox.attempts
    LEFT JOIN outbox.jobs ON jobs.id = attempts.job_id
    LEFT JOIN outbox.history AS done ON done.id = attempts.job_id AND done.finished_at >= @since::timestamptz
    WHERE attempts.finished_at >= @since::timestamptz
      AND attempts.finished_at < @until::timestamptz
      AND num_nonnulls(jobs.id, done.id) > 0
    GROUP BY 1, 2, 3
), part AS (
    SELECT open.tenant_id, open.queue, open.kind, open.waiting, open.running, open.dead_letters, open.enqueued,
           0::bigint AS jobs, 0::bigint AS succeeded, 0::bigint AS failed, NULL::integer AS bucket
    FROM open
    UNION ALL
    SELECT closed.tenant_id, closed.queue, closed.kind, 0, 0, 0, closed.enqueued, closed.jobs, closed.succeeded, 0, closed.bucket
    FROM closed
    UNION ALL
    SELECT failing.tenant_id, failing.queue, failing.kind, 0, 0, 0, 0, 0, 0, failing.failed, NULL
    FROM failing
), ranked AS (
    SELECT part.tenant_id, part.queue, part.kind,
           row_number() OVER (ORDER BY sum(part.waiting + part.running + part.enqueued + part.jobs + part.failed) DESC,
               sum(part.dead_letters) DESC, part.queue, part.kind, part.tenant_id) AS rank
    FROM part
    GROUP BY part.tenant_id, part.queue, part.kind
    HAVING sum(part.waiting + part.running + part.dead_letters + part.enqueued + part.jobs + part.failed) > 0
), stored AS (
    INSERT INTO outbox.measures (at, tenant_id, queue, kind, waiting, running, dead_letters, enqueued, succeeded, unsuccessful, failed, waits)
    SELECT @until::timestamptz, named.tenant_id, named.queue, named.kind, sum(part.waiting), sum(part.running),
           sum(part.dead_letters), sum(part.enqueued), sum(part.succeeded), sum(part.jobs - part.succeeded),
           sum(part.failed), ARRAY[
           sum(part.jobs) FILTER (WHERE part.bucket = 1), sum(part.jobs) FILTER (WHERE part.bucket = 2),
           sum(part.jobs) FILTER (WHERE part.bucket = 3), sum(part.jobs) FILTER (WHERE part.bucket = 4),
           sum(part.jobs) FILTER (WHERE part.bucket = 5), sum(part.jobs) FILTER (WHERE part.bucket = 6),
           sum(part.jobs) FILTER (WHERE part.bucket = 7), sum(part.jobs) FILTER (WHERE part.bucket = 8),
           sum(part.jobs) FILTER (WHERE part.bucket = 9), sum(part.jobs) FILTER (WHERE part.bucket = 10),
           sum(part.jobs) FILTER (WHERE part.bucket = 11), sum(part.jobs) FILTER (WHERE part.bucket = 12),
           sum(part.jobs) FILTER (WHERE part.bucket = 13), sum(part.jobs) FILTER (WHERE part.bucket = 14),
           sum(part.jobs) FILTER (WHERE part.bucket = 15), sum(part.jobs) FILTER (WHERE part.bucket = 16),
           sum(part.jobs) FILTER (WHERE part.bucket = 17), sum(part.jobs) FILTER (WHERE part.bucket = 18),
           sum(part.jobs) FILTER (WHERE part.bucket = 19), sum(part.jobs) FILTER (WHERE part.bucket = 20),
           sum(part.jobs) FILTER (WHERE part.bucket = 21), sum(part.jobs) FILTER (WHERE part.bucket = 22),
           sum(part.jobs) FILTER (WHERE part.bucket = 23), sum(part.jobs) FILTER (WHERE part.bucket = 24)]
    FROM ranked
    JOIN part ON (part.tenant_id, part.queue, part.kind) = (ranked.tenant_id, ranked.queue, ranked.kind)
    CROSS JOIN LATERAL (
        SELECT CASE WHEN ranked.rank <= @max_rows::integer THEN ranked.tenant_id END AS tenant_id,
               CASE WHEN ranked.rank <= @max_rows::integer THEN ranked.queue ELSE '' END AS queue,
               CASE WHEN ranked.rank <= @max_rows::integer THEN ranked.kind ELSE '' END AS kind
    ) AS named
    GROUP BY named.tenant_id, named.queue, named.kind
), present AS (
    SELECT workers.version, min(workers.started_at) AS since
    FROM outbox.workers
    WHERE workers.seen_at > statement_timestamp() - interval '150 seconds'
    GROUP BY workers.version
), known AS (
    UPDATE outbox.builds
    SET seen_at = @until::timestamptz
    FROM present
    WHERE builds.version = present.version
      AND builds.seen_at >= @since::timestamptz
    RETURNING builds.version
), new AS (
    -- A worker that was gone and is back keeps its start.
    INSERT INTO outbox.builds AS builds (version, since, seen_at)
    SELECT present.version, present.since, @until::timestamptz
    FROM present
    WHERE NOT EXISTS (SELECT FROM known WHERE known.version = present.version)
    ON CONFLICT (version, since) DO UPDATE
    SET seen_at = excluded.seen_at
)
INSERT INTO outbox.measured (at, since, complete)
SELECT @until::timestamptz, @since::timestamptz, (SELECT count(*) FROM ranked) <= @max_rows::integer
RETURNING complete;

-- name: SumHour :execrows
-- SumHour sums the minutes of the earliest hour that is over by @until and not summed yet. The caller holds the lock of
-- Measure: nothing is summed twice.
WITH first AS (
    SELECT measured.at
    FROM outbox.measured
    WHERE measured.at > (SELECT coalesce(max(measured_hours.at), '-infinity') FROM outbox.measured_hours)
    ORDER BY measured.at
    LIMIT 1
), hour AS MATERIALIZED (
    SELECT date_trunc('hour', first.at - interval '1 microsecond', 'UTC') + interval '1 hour' AS at
    FROM first
    WHERE date_trunc('hour', first.at - interval '1 microsecond', 'UTC') + interval '1 hour' <= @until::timestamptz
), minute AS MATERIALIZED (
    SELECT measured.at, extract(epoch FROM measured.at - measured.since) AS seconds, measured.complete, hour.at AS hour
    FROM hour
    JOIN outbox.measured ON measured.at > hour.at - interval '1 hour' AND measured.at <= hour.at
), total AS MATERIALIZED (
    SELECT minute.hour, sum(minute.seconds) AS seconds, bool_and(minute.complete) AS complete, count(*) AS minutes
    FROM minute
    GROUP BY minute.hour
), stored AS (
    INSERT INTO outbox.measures_hours (at, tenant_id, queue, kind, waiting, running, dead_letters, enqueued, succeeded, unsuccessful, failed, waits)
    SELECT total.hour, measures.tenant_id, measures.queue, measures.kind, round(sum(measures.waiting) / total.minutes),
           round(sum(measures.running) / total.minutes), round(sum(measures.dead_letters) / total.minutes),
           sum(measures.enqueued), sum(measures.succeeded), sum(measures.unsuccessful), sum(measures.failed),
           ARRAY[
           sum(measures.waits[1]), sum(measures.waits[2]), sum(measures.waits[3]), sum(measures.waits[4]),
           sum(measures.waits[5]), sum(measures.waits[6]), sum(measures.waits[7]), sum(measures.waits[8]),
           sum(measures.waits[9]), sum(measures.waits[10]), sum(measures.waits[11]), sum(measures.waits[12]),
           sum(measures.waits[13]), sum(measures.waits[14]), sum(measures.waits[15]), sum(measures.waits[16]),
           sum(measures.waits[17]), sum(measures.waits[18]), sum(measures.waits[19]), sum(measures.waits[20]),
           sum(measures.waits[21]), sum(measures.waits[22]), sum(measures.waits[23]), sum(measures.waits[24])]
    FROM total
    JOIN outbox.measures ON measures.at > total.hour - interval '1 hour' AND measures.at <= total.hour
    GROUP BY total.hour, total.minutes, measures.tenant_id, measures.queue, measures.kind
)
INSERT INTO outbox.measured_hours (at, seconds, complete)
SELECT total.hour, total.seconds, total.complete
FROM total;

-- name: TrimMeasures :one
-- TrimMeasures deletes the oldest counts that are older than @keep, up to @max_rows minutes, and returns how many
-- minutes it deleted.
WITH old AS MATERIALIZED (
    SELECT measured.at
    FROM outbox.measured
    WHERE measured.at < statement_timestamp() - @keep::interval
    ORDER BY measured.at
    LIMIT @max_rows::integer
), parts AS (
    DELETE FROM outbox.measures
    WHERE measures.at <= (SELECT max(old.at) FROM old)
), builds AS (
    DELETE FROM outbox.builds
    WHERE builds.seen_at < statement_timestamp() - @keep::interval
), sums AS (
    DELETE FROM outbox.measures_hours
    WHERE measures_hours.at < statement_timestamp() - @keep::interval
), hours AS (
    DELETE FROM outbox.measured_hours
    WHERE measured_hours.at < statement_timestamp() - @keep::interval
      -- The last row says from when on minutes are still to be summed.
      AND measured_hours.at < (SELECT max(latest.at) FROM outbox.measured_hours AS latest)
), minutes AS (
    DELETE FROM outbox.measured
    USING old
    WHERE measured.at = old.at
    RETURNING measured.at
)
SELECT count(*)::bigint AS minutes FROM minutes;

-- name: ReadSeries :many
-- ReadSeries returns the counts after @since and up to @until, in steps of @step, of a queue, a kind and a tenant, or
-- of any; with @by_hour, by the hour as far as hours are summed. For open jobs it returns the maximum of a step. A
-- minute whose rest without a name may contain the requested part counts as not measured.
WITH border AS MATERIALIZED (
    SELECT greatest(@since::timestamptz, (SELECT max(measured_hours.at) FROM outbox.measured_hours WHERE @by_hour::boolean)) AS at
), part AS (
    SELECT measures.at, measures.waiting, measures.running, measures.dead_letters, measures.enqueued, measures.succeeded,
           measures.unsuccessful, measures.failed, measures.waits
    FROM outbox.measures
    WHERE measures.at > (SELECT border.at FROM border)
      AND measures.at <= @until::timestamptz
      AND (@queue::text = '' OR measures.queue = @queue)
      AND (@kind::text = '' OR measures.kind = @kind)
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR measures.tenant_id = sqlc.narg(tenant_id))
    UNION ALL
    SELECT hours.at, hours.waiting, hours.running, hours.dead_letters, hours.enqueued, hours.succeeded, hours.unsuccessful,
           hours.failed, hours.waits
    FROM outbox.measures_hours AS hours
    WHERE @by_hour::boolean
      AND hours.at > @since::timestamptz
      AND hours.at <= @until::timestamptz
      AND (@queue = '' OR hours.queue = @queue)
      AND (@kind = '' OR hours.kind = @kind)
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR hours.tenant_id = sqlc.narg(tenant_id))
), moment AS (
    SELECT part.at, sum(part.waiting) AS waiting, sum(part.running) AS running, sum(part.dead_letters) AS dead_letters,
           sum(part.enqueued) AS enqueued, sum(part.succeeded) AS succeeded, sum(part.unsuccessful) AS unsuccessful, sum(part.failed) AS failed,
           ARRAY[
           sum(part.waits[1]), sum(part.waits[2]), sum(part.waits[3]), sum(part.waits[4]), sum(part.waits[5]), sum(part.waits[6]),
           sum(part.waits[7]), sum(part.waits[8]), sum(part.waits[9]), sum(part.waits[10]), sum(part.waits[11]), sum(part.waits[12]),
           sum(part.waits[13]), sum(part.waits[14]), sum(part.waits[15]), sum(part.waits[16]), sum(part.waits[17]), sum(part.waits[18]),
           sum(part.waits[19]), sum(part.waits[20]), sum(part.waits[21]), sum(part.waits[22]), sum(part.waits[23]), sum(part.waits[24])] AS waits
    FROM part
    GROUP BY part.at
), counted AS (
    SELECT measured.at, extract(epoch FROM measured.at - measured.since)::float8 AS seconds, measured.complete
    FROM outbox.measured
    WHERE measured.at > (SELECT border.at FROM border)
      AND measured.at <= @until::timestamptz
    UNION ALL
    SELECT hours.at, hours.seconds, hours.complete
    FROM outbox.measured_hours AS hours
    WHERE @by_hour::boolean
      AND hours.at > @since::timestamptz
      AND hours.at <= @until::timestamptz
)
SELECT date_bin(@step::interval, counted.at - interval '1 microsecond', @since::timestamptz)::timestamptz AS at,
       sum(counted.seconds)::float8 AS seconds,
       coalesce(max(moment.waiting), 0)::bigint AS waiting,
       coalesce(max(moment.running), 0)::bigint AS running,
       coalesce(max(moment.dead_letters), 0)::bigint AS dead_letters,
       coalesce(sum(moment.enqueued), 0)::bigint AS enqueued,
       coalesce(sum(moment.succeeded), 0)::bigint AS succeeded,
       coalesce(sum(moment.unsuccessful), 0)::bigint AS unsuccessful,
       coalesce(sum(moment.failed), 0)::bigint AS failed,
       ARRAY[
           coalesce(sum(moment.waits[1]), 0), coalesce(sum(moment.waits[2]), 0), coalesce(sum(moment.waits[3]), 0), coalesce(sum(moment.waits[4]), 0),
           coalesce(sum(moment.waits[5]), 0), coalesce(sum(moment.waits[6]), 0), coalesce(sum(moment.waits[7]), 0), coalesce(sum(moment.waits[8]), 0),
           coalesce(sum(moment.waits[9]), 0), coalesce(sum(moment.waits[10]), 0), coalesce(sum(moment.waits[11]), 0),
           coalesce(sum(moment.waits[12]), 0), coalesce(sum(moment.waits[13]), 0), coalesce(sum(moment.waits[14]), 0),
           coalesce(sum(moment.waits[15]), 0), coalesce(sum(moment.waits[16]), 0), coalesce(sum(moment.waits[17]), 0),
           coalesce(sum(moment.waits[18]), 0), coalesce(sum(moment.waits[19]), 0), coalesce(sum(moment.waits[20]), 0),
           coalesce(sum(moment.waits[21]), 0), coalesce(sum(moment.waits[22]), 0), coalesce(sum(moment.waits[23]), 0),
           coalesce(sum(moment.waits[24]), 0)]::bigint[] AS waits
FROM counted
LEFT JOIN moment ON moment.at = counted.at
WHERE counted.complete OR moment.at IS NOT NULL
GROUP BY 1
ORDER BY 1
LIMIT 10000;

-- name: ReadSparks :many
-- ReadSparks returns the maximum of waiting jobs in each step after @since and up to @until, by queue or by kind; and,
-- without a name, each step of which a minute was measured.
WITH minute AS (
    SELECT measures.at, CASE WHEN @by_kind::boolean THEN measures.kind ELSE measures.queue END AS name,
           sum(measures.waiting + measures.running) AS open
    FROM outbox.measures
    WHERE measures.at > @since::timestamptz
      AND measures.at <= @until::timestamptz
      AND measures.queue <> ''
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR measures.tenant_id = sqlc.narg(tenant_id))
    GROUP BY 1, 2
    UNION ALL
    SELECT measured.at, '', 0
    FROM outbox.measured
    WHERE measured.at > @since
      AND measured.at <= @until
)
SELECT minute.name::text AS name,
       date_bin(@step::interval, minute.at - interval '1 microsecond', @since::timestamptz)::timestamptz AS at,
       max(minute.open)::bigint AS open
FROM minute
GROUP BY 1, 2
ORDER BY 1, 2
LIMIT 10000;

-- name: ListMarks :many
-- ListMarks returns what operators did after @since and up to @until, to a queue or a tenant, or to any, and the builds
-- that workers began to run, oldest first. It looks only at the newest @max_rows of each, among the acts those of the
-- tenant, so that its cost does not depend on the length of the audit; and at the newest @max_rows acts on the queue
-- and its keys, which have an index: no act on many jobs hides them.
WITH recent AS (
    SELECT audit.id, audit.at, audit.actor, audit.act, audit.queue, audit.target, audit.reason, audit.request_id, audit.job_id
    FROM outbox.audit
    WHERE (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id)::uuid)
    ORDER BY audit.id DESC
    LIMIT @max_rows::integer
), on_queue AS (
    SELECT audit.at, audit.actor, audit.act, audit.queue, audit.target, audit.reason, audit.request_id
    FROM outbox.audit
    WHERE audit.queue = @queue::text
      AND audit.job_id IS NULL
      AND audit.queue IS NOT NULL
      AND audit.id > @after_id::bigint
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id)::uuid)
    ORDER BY audit.id DESC
    LIMIT @max_rows::integer
), deploy AS (
    SELECT builds.since AS at, builds.version
    FROM outbox.builds
    WHERE sqlc.narg(tenant_id)::uuid IS NULL
    ORDER BY builds.since DESC
    LIMIT @max_rows::integer
), mark AS (
    SELECT recent.at, ''::text AS build, recent.actor, recent.act, coalesce(recent.queue, '') AS queue, coalesce(recent.target, '') AS target,
           coalesce(recent.reason, '') AS reason, coalesce(recent.request_id, '') AS request_id
    FROM recent
    WHERE (@queue::text = '' OR recent.queue = @queue::text AND (recent.job_id IS NOT NULL OR recent.id <= @after_id))
    UNION ALL
    SELECT on_queue.at, '', on_queue.actor, on_queue.act, on_queue.queue, coalesce(on_queue.target, ''),
           coalesce(on_queue.reason, ''), coalesce(on_queue.request_id, '')
    FROM on_queue
    UNION ALL
    SELECT deploy.at, deploy.version, '', '', '', '', '', ''
    FROM deploy
)
SELECT mark.at::timestamptz AS at, mark.build::text AS build, mark.actor::text AS actor, mark.act::text AS act, mark.queue::text AS queue,
       mark.target::text AS target, mark.reason::text AS reason, mark.request_id::text AS request_id
FROM mark
WHERE mark.at > @since::timestamptz
  AND mark.at <= @until::timestamptz
ORDER BY 1
LIMIT 10000;
