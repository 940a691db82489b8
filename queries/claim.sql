{{- /* The jobs that a claim chooses: their places, with their statuses if the argument is true. */}}
{{- define "due"}}
    FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id,
                 unnest(@quotas::integer[])  AS quota,
                 unnest(@firsts::integer[])  AS first,
                 unnest(@lasts::integer[])   AS last) AS share
    CROSS JOIN LATERAL (
        SELECT candidate.place{{if .}}, candidate.status{{end}}
        FROM (SELECT unnest((@priorities::smallint[])[share.first:share.last])     AS priority,
                     unnest((@from_run_at::timestamptz[])[share.first:share.last]) AS run_at,
                     unnest((@from_id::uuid[])[share.first:share.last])            AS id,
                     unnest((@only_ids::uuid[])[share.first:share.last])               AS one) AS cursor
        CROSS JOIN LATERAL (
            -- One cursor's range of the index ends at this statement's time, so that rows due tomorrow at a high
            -- priority are never read.
            SELECT first_due.* FROM (
                SELECT (jobs).ctid AS place{{if .}}, jobs.status{{end}}
                FROM outbox.jobs
                WHERE cursor.one IS NULL
                  AND jobs.queue = @queue
                  AND jobs.tenant_id = share.tenant_id
                  AND jobs.priority = cursor.priority
                  AND jobs.key IS NULL -- jobs with a key: queries/keys.sql
                  AND jobs.status IN ('pending', 'retrying')
                  AND (jobs.run_at, jobs.id) >= (cursor.run_at, cursor.id)
                  AND jobs.run_at <= statement_timestamp()
                  AND jobs.kind = ANY (@kinds::text[])
                  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                ORDER BY jobs.run_at, jobs.id
                LIMIT share.quota
                FOR UPDATE SKIP LOCKED
            ) AS first_due
            UNION ALL
            SELECT known.* FROM (
                SELECT (jobs).ctid AS place{{if .}}, jobs.status{{end}}
                FROM outbox.jobs
                WHERE jobs.id = cursor.one
                  AND jobs.run_at = cursor.run_at
                  AND jobs.queue = @queue
                  AND jobs.tenant_id = share.tenant_id
                  AND jobs.priority = cursor.priority
                  AND jobs.key IS NULL
                  -- As text: a plan must not choose the index of due jobs here, whose entries may be dead and many.
                  AND jobs.status::text IN ('pending', 'retrying')
                  AND jobs.run_at <= statement_timestamp()
                  AND jobs.kind = ANY (@kinds::text[])
                  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ) AS known
        ) AS candidate
        LIMIT share.quota
    ) AS taken
    WHERE NOT EXISTS (
        SELECT FROM outbox.queues
        WHERE queues.queue = @queue AND (queues.paused_at IS NOT NULL OR (queues.limited AND NOT @within_limits::boolean)))
    LIMIT @max_jobs
{{end -}}
-- name: ClaimJobs :many
-- ClaimJobs leases due jobs without a key to @worker: of each of @tenant_ids no more than its quota, highest priority
-- first, and no more than @max_jobs in total. A tenant's cursors, one for each priority, are the elements from its
-- first to its last of @priorities; each says where to start reading the index, or has in @only_ids the id of a job
-- that was found there, which is looked up by that. Concurrent claimers skip each other's rows instead of waiting. The
-- rows come back in no particular order.
--
-- The jobs are chosen once: ARRAY builds a list of them before the first row is written, whatever the plan. A
-- sub-select in a join may be executed again for each row, and would choose other jobs
-- (docs/adr/0015-chosen-as-a-list.md).
--
-- The locked rows are found again by their place: no other transaction can move them. If a row changed between this
-- statement's snapshot and its lock, it is at a place that the snapshot does not see, and is left alone. A change that
-- makes a job due (by an operator, or by a dispatcher that gave it back) wakes the dispatchers after its commit.
UPDATE outbox.jobs
SET status           = 'running',
    attempt          = jobs.attempt + 1,
    epoch            = jobs.epoch + 1,
    lease_owner      = @worker::text,
    -- Leases follow the database's clock alone; the claim may have waited, so the lease runs from the moment of the
    -- write.
    lease_expires_at = clock_timestamp() + @lease_ttl::interval,
    started_at       = statement_timestamp()
WHERE jobs.ctid = ANY (ARRAY(
    SELECT taken.place{{template "due"}}))
RETURNING {{claimed "jobs"}}, (jobs).ctid::tid AS place;

-- name: ClaimStreamedJobs :many
-- ClaimStreamedJobs is ClaimJobs for a queue with streamed jobs: it stores their events with one INSERT, where a
-- trigger would store each separately, and counts them. Dispatchers send it if the claim before it has leased such
-- jobs. It leases other jobs as well.
WITH taken AS MATERIALIZED (
    SELECT taken.place, taken.status{{template "due" true}}), claimed AS (
    UPDATE outbox.jobs
    SET status           = 'running',
        attempt          = jobs.attempt + 1,
        epoch            = jobs.epoch + 1,
        lease_owner      = @worker::text,
        lease_expires_at = clock_timestamp() + @lease_ttl::interval,
        started_at       = statement_timestamp(),
        streamed         = jobs.streamed + 1
    FROM taken
    WHERE jobs.ctid = taken.place
      AND (SELECT outbox.counts_events())
    RETURNING {{claimed "jobs"}}, (jobs).ctid AS place, jobs.queue, jobs.lease_owner, taken.status AS previous
), stored AS (
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    SELECT outbox.job_event_id(id, streamed, epoch, 'started'), tenant_id, 'job.started', id, 'application/json',
           convert_to(outbox.job_event_fields(id, tenant_id, 'started', streamed, previous::text, 'running', epoch, attempt, queue, kind, key,
               started_at, ',"worker":' || to_json(lease_owner)::text
                   || CASE WHEN lost_leases > 0 THEN ',"lost_leases":' || lost_leases::text ELSE '' END)
               || '}', 'UTF8'),
           outbox.job_event_headers(headers)
    FROM claimed
    WHERE streamed IS NOT NULL
)
SELECT {{claimed "claimed"}}, claimed.place::tid AS place
FROM claimed
LIMIT 100000;

{{- /* A skip scan that returns one row for each tenant and priority with a due or waiting job in the gaps between
tenants: of jobs without a key, or, with the argument "keyed_", with one. */}}
{{- define "new_tenant" -}}
new_{{.}}tenant (at, tenant_id, priority, n) AS (
    SELECT gap.at, first.tenant_id, first.priority, 1
    FROM unnest(@{{.}}gap_from::uuid[]) WITH ORDINALITY AS gap(tenant_id, at)
    CROSS JOIN LATERAL (
        SELECT jobs.tenant_id, jobs.priority
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id >= gap.tenant_id
          AND jobs.tenant_id <= (@{{.}}gap_to::uuid[])[gap.at]
          AND jobs.key IS {{if .}}NOT {{end}}NULL
          AND jobs.status IN ('pending', 'retrying')
        ORDER BY jobs.tenant_id, jobs.priority, jobs.run_at DESC, jobs.id DESC
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT new_{{.}}tenant.at, next.tenant_id, next.priority, new_{{.}}tenant.n + 1
    FROM new_{{.}}tenant
    CROSS JOIN LATERAL (
        (
            SELECT jobs.tenant_id, jobs.priority
            FROM outbox.jobs
            WHERE jobs.queue = @queue
              AND jobs.tenant_id = new_{{.}}tenant.tenant_id
              AND jobs.priority > new_{{.}}tenant.priority
              AND jobs.key IS {{if .}}NOT {{end}}NULL
              AND jobs.status IN ('pending', 'retrying')
            ORDER BY jobs.priority, jobs.run_at DESC, jobs.id DESC
            LIMIT 1
        )
        UNION ALL
        (
            SELECT jobs.tenant_id, jobs.priority
            FROM outbox.jobs
            WHERE jobs.queue = @queue
              AND jobs.tenant_id > new_{{.}}tenant.tenant_id
              AND jobs.tenant_id <= (@{{.}}gap_to::uuid[])[new_{{.}}tenant.at]
              AND jobs.key IS {{if .}}NOT {{end}}NULL
              AND jobs.status IN ('pending', 'retrying')
            ORDER BY jobs.tenant_id, jobs.priority, jobs.run_at DESC, jobs.id DESC
            LIMIT 1
        )
        LIMIT 1
    ) AS next
    WHERE new_{{.}}tenant.n < @max_new::integer
{{end}}
{{- /* The same for the gaps between the priorities of one tenant. */}}
{{- define "new_level" -}}
new_{{.}}level (at, tenant_id, priority, n) AS (
    SELECT gap.at, gap.tenant_id, first.priority, 1
    FROM unnest(@{{.}}level_tenant_ids::uuid[]) WITH ORDINALITY AS gap(tenant_id, at)
    CROSS JOIN LATERAL (
        SELECT jobs.priority
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = gap.tenant_id
          AND jobs.priority >= (@{{.}}level_from::integer[])[gap.at]
          AND jobs.priority <= (@{{.}}level_to::integer[])[gap.at]
          AND jobs.key IS {{if .}}NOT {{end}}NULL
          AND jobs.status IN ('pending', 'retrying')
        ORDER BY jobs.priority, jobs.run_at DESC, jobs.id DESC
        LIMIT 1
    ) AS first
    UNION ALL
    SELECT new_{{.}}level.at, new_{{.}}level.tenant_id, next.priority, new_{{.}}level.n + 1
    FROM new_{{.}}level
    CROSS JOIN LATERAL (
        SELECT jobs.priority
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = new_{{.}}level.tenant_id
          AND jobs.priority > new_{{.}}level.priority
          AND jobs.priority <= (@{{.}}level_to::integer[])[new_{{.}}level.at]
          AND jobs.key IS {{if .}}NOT {{end}}NULL
          AND jobs.status IN ('pending', 'retrying')
        ORDER BY jobs.priority, jobs.run_at DESC, jobs.id DESC
        LIMIT 1
    ) AS next
    WHERE new_{{.}}level.n < @max_new::integer
{{end -}}
-- name: SurveyQueue :many
-- SurveyQueue returns when the next job of each known cursor becomes due, and which tenants and priorities without a
-- cursor have jobs. It reads only live entries: the future end of a known cursor's range of the index, and the gaps
-- between these ranges, each from its newest entry backwards. It never reads entries of jobs that were claimed long ago
-- and cannot be removed while a transaction holds a snapshot, as long as a cursor covers them.
--
-- The future begins at @since, the time of the previous survey: a job that became due after the last claim had looked
-- is returned with a wait below zero, and only once. A tenant and priority without a cursor has a wait of minus
-- infinity. The row without a tenant carries the time of this survey; another one, whose wait is not a number, means
-- that the queue is paused or limited.
--
-- Of the cursors @asked, a claim has got no job although some were due by @since. Those that still have one of @kinds
-- have a wait of minus infinity, too: another transaction has locked it. The range is that of the claim.
--
-- The survey finds at most @max_new tenants and priorities in the gaps between tenants, and as many in those between
-- priorities, separately for jobs with and without a key. If it finds that many, there may be others.
--
-- A gap between two tenants with cursors runs from the one after the first to the one before the second, both included.
-- It is a range of one column, because PostgreSQL ends the scan of a row comparison at the first column only.
WITH RECURSIVE {{template "new_tenant" ""}}), {{template "new_tenant" "keyed_"}}), {{template "new_level" ""}}), {{template "new_level" "keyed_"}})
(
    SELECT false AS keyed, known.tenant_id::uuid AS tenant_id, known.priority::smallint AS priority,
           extract(epoch FROM next_due.run_at - clock_timestamp())::double precision AS due_in_seconds,
           statement_timestamp()::timestamptz AS surveyed_at
    FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id, unnest(@priorities::smallint[]) AS priority) AS known
    CROSS JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = known.tenant_id
          AND jobs.priority = known.priority
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.run_at > least(@since::timestamptz, statement_timestamp())
        ORDER BY jobs.run_at
        LIMIT 1
    ) AS next_due
)
UNION ALL
(
    SELECT true, known.tenant_id, known.priority, extract(epoch FROM next_due.run_at - clock_timestamp()), statement_timestamp()
    FROM (SELECT unnest(@keyed_tenant_ids::uuid[]) AS tenant_id, unnest(@keyed_priorities::smallint[]) AS priority) AS known
    CROSS JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = known.tenant_id
          AND jobs.priority = known.priority
          AND jobs.key IS NOT NULL
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.run_at > least(@since::timestamptz, statement_timestamp())
        ORDER BY jobs.run_at
        LIMIT 1
    ) AS next_due
)
UNION ALL
(
    SELECT false, asked.tenant_id, asked.priority, '-infinity', statement_timestamp()
    FROM (SELECT unnest(@asked_tenant_ids::uuid[]) AS tenant_id, unnest(@asked_priorities::smallint[]) AS priority,
                 unnest(@asked_from::timestamptz[]) AS run_at) AS asked
    CROSS JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = asked.tenant_id
          AND jobs.priority = asked.priority
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.run_at >= asked.run_at
          AND jobs.run_at <= least(@since::timestamptz, statement_timestamp())
          AND jobs.kind = ANY (@kinds::text[])
          AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
        ORDER BY jobs.run_at
        LIMIT 1
    ) AS passed
    WHERE NOT EXISTS (SELECT FROM outbox.queues WHERE queues.queue = @queue AND queues.paused_at IS NOT NULL)
)
UNION ALL
(SELECT false, new_level.tenant_id, new_level.priority, '-infinity', statement_timestamp() FROM new_level LIMIT @max_new)
UNION ALL
(SELECT true, new_keyed_level.tenant_id, new_keyed_level.priority, '-infinity', statement_timestamp() FROM new_keyed_level LIMIT @max_new)
UNION ALL
(SELECT false, new_tenant.tenant_id, new_tenant.priority, '-infinity', statement_timestamp() FROM new_tenant LIMIT @max_new)
UNION ALL
(SELECT true, new_keyed_tenant.tenant_id, new_keyed_tenant.priority, '-infinity', statement_timestamp() FROM new_keyed_tenant LIMIT @max_new)
UNION ALL
(
    SELECT false, '00000000-0000-0000-0000-000000000000', 0::smallint, 'NaN', statement_timestamp()
    FROM outbox.queues
    WHERE queues.queue = @queue
      AND (queues.paused_at IS NOT NULL OR queues.limited)
    LIMIT 1
)
UNION ALL
SELECT false, '00000000-0000-0000-0000-000000000000', 0::smallint, 'infinity', statement_timestamp()
LIMIT 10000;

-- name: ReturnOrphans :execrows
-- ReturnOrphans gives back the jobs of a queue that @worker holds without knowing it, because their claim was cut off
-- after it had committed. It spends no attempt. It leaves lapsed leases and cancelled jobs to the reaper.
WITH orphans AS MATERIALIZED (
    SELECT jobs.id
    FROM outbox.jobs
    WHERE jobs.status = 'running'
      AND jobs.lease_expires_at > statement_timestamp()
      AND jobs.queue = @queue
      AND jobs.lease_owner = @worker::text
      AND jobs.cancel_requested_at IS NULL
      AND jobs.id NOT IN (SELECT unnest(@held::uuid[])) -- hashed; thousands of single comparisons would take a second
    FOR UPDATE SKIP LOCKED
)
UPDATE outbox.jobs
SET status           = 'pending',
    epoch            = jobs.epoch + 1,
    attempt          = jobs.attempt - 1,
    lease_owner      = NULL,
    lease_expires_at = NULL
FROM orphans
WHERE jobs.id = ANY (ARRAY[orphans.id]);

{{- /* The first due jobs of a flow before a position: those without a key, or, with an argument, those with one. */}}
{{- define "unreached"}}
SELECT jobs.run_at, jobs.id
FROM outbox.jobs
WHERE jobs.queue = @queue
  AND jobs.tenant_id = @tenant_id
  AND jobs.priority = @priority
  AND jobs.key IS {{.}}NULL
  AND jobs.status IN ('pending', 'retrying')
  AND (jobs.run_at, jobs.id) < (@end_run_at::timestamptz, @end_id::uuid)
  AND jobs.run_at <= statement_timestamp()
  AND jobs.kind = ANY (@kinds::text[])
  AND (jobs.deadline IS NULL OR jobs.deadline > statement_timestamp())
ORDER BY jobs.run_at, jobs.id
LIMIT @max_jobs;
{{end}}
-- name: FindUnreached :many
-- FindUnreached returns the first @max_jobs due jobs of @kinds, of those without a key, of one tenant and priority,
-- before a position. It reads what claims do not: from the first entry of the index, however many entries there are of
-- jobs that were claimed and that a snapshot keeps. So it may take minutes, and runs beside the claims.
{{- template "unreached" ""}}
-- name: FindUnreachedKeyed :many
-- FindUnreachedKeyed is FindUnreached for jobs with a key.
{{- template "unreached" "NOT "}}
