-- name: ClaimShared :many
-- ClaimShared leases due jobs of tenants other than root to @worker: of each of
-- @tenant_ids no more than its quota, highest priority first. Its lanes, one for a
-- priority, are the elements from its first to its last of @priorities, and each
-- begins at the position where it is told to. The rows are those of ClaimJobs, in
-- no particular order, and what that says of its places holds here, too.
--
-- No more than @reach rows of a lane are looked at: there may be a million before
-- the next one that has a handler here. PassLanes tells whether there are more.
UPDATE outbox.jobs
SET status           = 'running',
    attempt          = jobs.attempt + 1,
    epoch            = jobs.epoch + 1,
    lease_owner      = @worker::text,
    lease_expires_at = clock_timestamp() + @lease_ttl::interval, -- as in ClaimJobs
    started_at       = statement_timestamp()
WHERE jobs.ctid = ANY (ARRAY(
    SELECT taken.place
    FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id,
                 unnest(@quotas::integer[])  AS quota,
                 unnest(@firsts::integer[])  AS first,
                 unnest(@lasts::integer[])   AS last) AS share
    CROSS JOIN LATERAL (
        SELECT candidate.place
        FROM (SELECT unnest((@priorities::smallint[])[share.first:share.last])     AS priority,
                     unnest((@from_run_at::timestamptz[])[share.first:share.last]) AS run_at,
                     unnest((@from_id::uuid[])[share.first:share.last])            AS id) AS lane
        CROSS JOIN LATERAL (
            SELECT locked.place
            FROM (
                SELECT (jobs).ctid AS place
                FROM outbox.jobs
                WHERE jobs.queue = @queue
                  AND jobs.tenant_id = share.tenant_id
                  AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
                  AND jobs.priority = lane.priority
                  AND jobs.key IS NULL
                  AND jobs.status IN ('pending', 'retrying')
                  AND (jobs.run_at, jobs.id) >= (lane.run_at, lane.id)
                  AND jobs.run_at <= now()
                ORDER BY jobs.run_at, jobs.id
                LIMIT @reach::integer
            ) AS looked
            CROSS JOIN LATERAL (
                SELECT (jobs).ctid AS place
                FROM outbox.jobs
                WHERE jobs.ctid = looked.place
                  AND jobs.status IN ('pending', 'retrying')
                  AND jobs.kind = ANY (@kinds::text[])
                  AND (jobs.deadline IS NULL OR jobs.deadline > now())
                LIMIT 1
                FOR UPDATE SKIP LOCKED
            ) AS locked
            LIMIT share.quota
        ) AS candidate
        LIMIT share.quota
    ) AS taken
    WHERE NOT EXISTS (
        SELECT FROM outbox.queues
        WHERE queues.queue = @queue AND (queues.paused_at IS NOT NULL OR (queues.limited AND NOT @within_limits::boolean)))
    LIMIT @max_jobs
))
RETURNING jobs.id, jobs.tenant_id, jobs.kind, jobs.priority, jobs.attempt, jobs.max_attempts, jobs.lost_leases,
    jobs.epoch, jobs.key, jobs.payload, jobs.content_type, jobs.headers, jobs.timeout, jobs.backoff,
    jobs.run_at, jobs.created_at, jobs.started_at, jobs.deadline, jobs.watched, (jobs).ctid::tid AS place;

-- name: WalkLanes :many
-- WalkLanes finds out which tenants other than root have jobs in a queue: it hops
-- from one lane, a tenant's priority, to the next, in falling order from below
-- (@at_tenant_id, @at_priority) on, then once around from the top as far as
-- (@until_tenant_id, @until_priority), and tells when the first job of each is due.
-- It stops after @max_lanes lanes, or @max_due due ones.
--
-- Of a lane whose first job is due it also tells when the next one is that became
-- or becomes due after @since, when the walk before this one was made: that first
-- job may be of a kind without a handler. And when the first one is that is not due
-- yet: after a claim of those that are nobody else would tell. The last row, of no
-- tenant, carries the time of this walk.
WITH RECURSIVE lane (tenant_id, priority, run_at, wrapped, looked, due) AS (
    SELECT @at_tenant_id::uuid, @at_priority::smallint, NULL::timestamptz, @wrapped::boolean, 0, 0
    UNION ALL
    SELECT step.tenant_id, step.priority, step.run_at, step.wrapped, lane.looked + 1,
           lane.due + CASE WHEN step.run_at <= statement_timestamp() THEN 1 ELSE 0 END
    FROM lane
    CROSS JOIN LATERAL (
        (
            SELECT jobs.tenant_id, jobs.priority, jobs.run_at, lane.wrapped AS wrapped
            FROM outbox.jobs
            WHERE jobs.queue = @queue
              AND (jobs.tenant_id, jobs.priority) < (lane.tenant_id, lane.priority)
              AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
              AND jobs.key IS NULL
              AND jobs.status IN ('pending', 'retrying')
            ORDER BY jobs.tenant_id DESC, jobs.priority DESC, jobs.run_at
            LIMIT 1
        )
        UNION ALL
        (
            SELECT jobs.tenant_id, jobs.priority, jobs.run_at, true
            FROM outbox.jobs
            WHERE NOT lane.wrapped
              AND jobs.queue = @queue
              AND (jobs.tenant_id, jobs.priority) >= (@until_tenant_id::uuid, @until_priority::smallint)
              AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
              AND jobs.key IS NULL
              AND jobs.status IN ('pending', 'retrying')
            ORDER BY jobs.tenant_id DESC, jobs.priority DESC, jobs.run_at
            LIMIT 1
        )
        LIMIT 1
    ) AS step
    WHERE lane.looked < @max_lanes::integer
      AND lane.due < @max_due::integer
      AND NOT (step.wrapped AND (step.tenant_id, step.priority) < (@until_tenant_id::uuid, @until_priority::smallint))
)
(
    SELECT lane.tenant_id::uuid AS tenant_id, lane.priority::smallint AS priority, lane.wrapped::boolean AS wrapped,
           lane.run_at::timestamptz AS run_at,
           extract(epoch FROM lane.run_at - clock_timestamp())::double precision AS due_in_seconds,
           coalesce(extract(epoch FROM next_due.run_at - clock_timestamp()), 'infinity')::double precision AS next_in_seconds,
           coalesce(extract(epoch FROM future.run_at - clock_timestamp()), 'infinity')::double precision AS future_in_seconds,
           statement_timestamp()::timestamptz AS walked_at
    FROM lane
    LEFT JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE lane.run_at <= statement_timestamp()
          AND jobs.queue = @queue
          AND jobs.tenant_id = lane.tenant_id
          AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
          AND jobs.priority = lane.priority
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.run_at > least(@since::timestamptz, statement_timestamp())
        ORDER BY jobs.run_at
        LIMIT 1
    ) AS next_due ON true
    LEFT JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE next_due.run_at <= statement_timestamp()
          AND jobs.queue = @queue
          AND jobs.tenant_id = lane.tenant_id
          AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
          AND jobs.priority = lane.priority
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
          AND jobs.run_at > statement_timestamp()
        ORDER BY jobs.run_at
        LIMIT 1
    ) AS future ON true
    WHERE lane.looked > 0
    ORDER BY lane.looked
    LIMIT @max_lanes
)
UNION ALL
SELECT '00000000-0000-0000-0000-000000000000', 0::smallint, false, statement_timestamp(), 'infinity', 'infinity', 'infinity', statement_timestamp()
LIMIT 10000;

-- name: FindLanes :many
-- FindLanes tells when the first job becomes due of each known lane from its position
-- on, and of each lane in the gaps between the known ones. WalkLanes reads the front of
-- every lane, where dead entries stay while a snapshot is held; FindLanes reads none of a
-- known lane that a claim has passed, and enters a gap from the side of its newest jobs.
--
-- A gap begins behind (@low_tenant_ids, @low_priorities) and ends before
-- @high_tenant_ids. It is bounded by the tenant alone: PostgreSQL ends the scan of a
-- comparison of rows on its first column only, and would read all of the last lane. So
-- the priorities between the known ones of a tenant are gaps of their own. The last row,
-- of no tenant, carries the time.
WITH RECURSIVE hop (tenant_id, priority, high_tenant_id, looked) AS (
    SELECT gap.tenant_id, gap.priority, gap.high_tenant_id, 0
    FROM (SELECT unnest(@low_tenant_ids::uuid[]) AS tenant_id, unnest(@low_priorities::smallint[]) AS priority,
                 unnest(@high_tenant_ids::uuid[]) AS high_tenant_id) AS gap
    UNION ALL
    SELECT step.tenant_id, step.priority, hop.high_tenant_id, hop.looked + 1
    FROM hop
    CROSS JOIN LATERAL (
        SELECT jobs.tenant_id, jobs.priority
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND (jobs.tenant_id, jobs.priority) > (hop.tenant_id, hop.priority)
          AND jobs.tenant_id < hop.high_tenant_id
          AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
        ORDER BY jobs.tenant_id, jobs.priority, jobs.run_at DESC, jobs.id DESC
        LIMIT 1
    ) AS step
    WHERE hop.looked < @max_lanes::integer
)
(
    SELECT known.tenant_id::uuid AS tenant_id, known.priority::smallint AS priority, first.run_at::timestamptz AS run_at,
           extract(epoch FROM first.run_at - clock_timestamp())::double precision AS due_in_seconds,
           statement_timestamp()::timestamptz AS looked_at
    FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id, unnest(@priorities::smallint[]) AS priority,
                 unnest(@from_run_at::timestamptz[]) AS run_at, unnest(@from_id::uuid[]) AS id) AS known
    CROSS JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = known.tenant_id
          AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
          AND jobs.priority = known.priority
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
          AND (jobs.run_at, jobs.id) >= (known.run_at, known.id)
        ORDER BY jobs.run_at, jobs.id
        LIMIT 1
    ) AS first
)
UNION ALL
(
    SELECT lane.tenant_id, lane.priority, first.run_at, extract(epoch FROM first.run_at - clock_timestamp())::double precision, statement_timestamp()
    FROM (
        (SELECT hop.tenant_id, hop.priority FROM hop WHERE hop.looked > 0 LIMIT @max_lanes)
        UNION ALL
        SELECT within.tenant_id, step.priority
        FROM (SELECT unnest(@within_tenant_ids::uuid[]) AS tenant_id, unnest(@above::integer[]) AS above, unnest(@below::integer[]) AS below) AS within
        CROSS JOIN LATERAL (
            SELECT jobs.priority
            FROM outbox.jobs
            WHERE jobs.queue = @queue
              AND jobs.tenant_id = within.tenant_id
              AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
              AND jobs.priority > within.above
              AND jobs.priority < within.below
              AND jobs.key IS NULL
              AND jobs.status IN ('pending', 'retrying')
            ORDER BY jobs.priority, jobs.run_at DESC, jobs.id DESC
            LIMIT 1
        ) AS step
    ) AS lane
    CROSS JOIN LATERAL (
        SELECT jobs.run_at
        FROM outbox.jobs
        WHERE jobs.queue = @queue
          AND jobs.tenant_id = lane.tenant_id
          AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
          AND jobs.priority = lane.priority
          AND jobs.key IS NULL
          AND jobs.status IN ('pending', 'retrying')
        ORDER BY jobs.run_at, jobs.id
        LIMIT 1
    ) AS first
    LIMIT @max_lanes
)
UNION ALL
SELECT '00000000-0000-0000-0000-000000000000', 0::smallint, statement_timestamp(), 'infinity', statement_timestamp()
LIMIT 10000;

-- name: PassLanes :many
-- PassLanes tells, of the numbers @ats, those of lanes in which due jobs are left
-- behind the first @reach from the given position on, and where.
SELECT input.at::integer AS at, further.run_at::timestamptz AS run_at, further.id::uuid AS id
FROM (SELECT unnest(@ats::integer[]) AS at, unnest(@tenant_ids::uuid[]) AS tenant_id, unnest(@priorities::smallint[]) AS priority,
             unnest(@from_run_at::timestamptz[]) AS run_at, unnest(@from_id::uuid[]) AS id) AS input
CROSS JOIN LATERAL (
    SELECT jobs.run_at, jobs.id
    FROM outbox.jobs
    WHERE jobs.queue = @queue
      AND jobs.tenant_id = input.tenant_id
      AND jobs.tenant_id <> '00000000-0000-0000-0000-000000000001'
      AND jobs.priority = input.priority
      AND jobs.key IS NULL
      AND jobs.status IN ('pending', 'retrying')
      AND (jobs.run_at, jobs.id) >= (input.run_at, input.id)
      AND jobs.run_at <= now()
    ORDER BY jobs.run_at, jobs.id
    OFFSET @reach::integer
    LIMIT 1
) AS further
LIMIT 10000;
