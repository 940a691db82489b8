-- name: SurveyKinds :many
-- SurveyKinds returns for each queue and kind with open jobs, of a @tenant or of all, how many wait, are due and run;
-- since when the first is due; how many have leases that lapsed more than @patience ago and are not extended in
-- lease_extensions; and since when the kind's dependency is unavailable, for which jobs due for over five minutes do
-- not count. Messages that a sink has not accepted are not due, as in SampleDepth. It reads every open job once.
SELECT jobs.queue, jobs.kind,
       count(*) FILTER (WHERE jobs.status IN ('pending', 'retrying', 'blocked')) AS waiting,
       count(*) FILTER (WHERE jobs.status IN ('pending', 'retrying') AND jobs.run_at <= statement_timestamp()
           AND jobs.kind NOT LIKE 'relay:%') AS due,
       count(*) FILTER (WHERE jobs.status = 'running') AS running,
       count(*) FILTER (WHERE jobs.status = 'running' AND jobs.lease_expires_at < statement_timestamp() - @patience::interval
           AND NOT EXISTS (
               SELECT FROM outbox.lease_extensions AS beside
               WHERE beside.job_id = jobs.id AND beside.epoch = jobs.epoch AND beside.expires_at > statement_timestamp())) AS lapsed,
       min(jobs.run_at) FILTER (WHERE jobs.status IN ('pending', 'retrying') AND jobs.run_at <= statement_timestamp()
           AND jobs.kind NOT LIKE 'relay:%')::timestamptz AS oldest_due,
       min(jobs.lease_expires_at) FILTER (WHERE jobs.status = 'running')::timestamptz AS oldest_lease,
       min(jobs.unavailable_since) FILTER (WHERE jobs.status IN ('pending', 'retrying')
           AND jobs.run_at > statement_timestamp() - interval '5 minutes')::timestamptz AS unavailable_since
FROM outbox.jobs
WHERE sqlc.narg('tenant')::uuid IS NULL OR jobs.tenant_id = sqlc.narg('tenant')
GROUP BY jobs.queue, jobs.kind
ORDER BY jobs.queue, jobs.kind
LIMIT 10000;
