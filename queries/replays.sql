-- name: CountReplay :one
-- CountReplay returns what a replay would publish again: the number of events, their first and last position, and how
-- many of them the sink's broker, as far as that is known, would drop as repeats if they are published under their own
-- ids.
SELECT count(*) AS events, coalesce(min(position), 0)::bigint AS first_position, coalesce(max(position), 0)::bigint AS last_position,
       min(at)::timestamptz AS oldest, max(at)::timestamptz AS newest,
       count(*) FILTER (WHERE at > clock_timestamp() - (SELECT sinks.remembers FROM outbox.sinks WHERE sinks.sink = @sink)) AS remembered,
       coalesce((SELECT sinks.remembers FROM outbox.sinks WHERE sinks.sink = @sink), '0')::interval AS remembers
FROM outbox.events
WHERE at >= @since::timestamptz
  AND at < @until::timestamptz
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR tenant_id = sqlc.narg(tenant_id))
  AND (@key::text = '' OR key = @key)
  AND (cardinality(@topics::text[]) = 0 OR EXISTS (
      SELECT FROM unnest(@topics) AS pattern
      WHERE topic = pattern OR (right(pattern, 1) = '*' AND starts_with(topic, left(pattern, -1)))));

-- name: StartReplay :one
-- StartReplay stores a replay, whose events the sink's owner publishes again, and returns its start. It deletes replays
-- that ended long ago. Without such a sink the foreign key refuses it.
WITH forgotten AS (
    DELETE FROM outbox.replays WHERE finished_at < clock_timestamp() - interval '90 days'
), started AS (
    INSERT INTO outbox.replays (id, sink, tenant_id, topics, key, since, until, position, last_position, per_second,
        again, stop_live, events, actor, reason)
    VALUES (@id::uuid, @sink::text, sqlc.narg(tenant_id)::uuid, @topics::text[], @key::text, @since::timestamptz, @until::timestamptz,
        @position::bigint, @last_position::bigint, @per_second::float8, @again::boolean, @stop_live::boolean,
        @events::bigint, @actor::text, @reason::text)
    RETURNING *
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT started.actor, nullif(@request_id::text, ''), nullif(started.reason, ''), 'sink.replay', started.sink, started.tenant_id,
        '{"replay": null}', to_jsonb(started) - '{actor,reason,sink,tenant_id,published,refused,repeated,created_at,finished_at,stopped,failure}'::text[]
    FROM started
)
SELECT started.created_at FROM started;

-- name: ListReplays :many
-- ListReplays returns the replays of a sink, newest first; with an id only that one.
SELECT * FROM outbox.replays
WHERE sink = @sink
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR tenant_id = sqlc.narg(tenant_id))
  AND (sqlc.narg(id)::uuid IS NULL OR id = sqlc.narg(id))
ORDER BY id DESC
LIMIT 1000;

-- name: StopReplay :many
-- StopReplay ends a running replay. It returns the replay, if there is one.
WITH found AS MATERIALIZED (
    SELECT replays.id, replays.sink, replays.tenant_id, replays.finished_at, replays.published
    FROM outbox.replays
    WHERE replays.sink = @sink
      AND replays.id = @id
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR replays.tenant_id = sqlc.narg(tenant_id))
    FOR UPDATE
), stopped AS (
    UPDATE outbox.replays
    SET finished_at = clock_timestamp(), stopped = true
    FROM found
    WHERE replays.id = found.id
      AND found.finished_at IS NULL
    RETURNING replays.id
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'sink.stop_replay', found.sink, found.tenant_id,
        jsonb_build_object('replay', found.id, 'stopped', false),
        jsonb_build_object('replay', found.id, 'stopped', true, 'published', found.published)
    FROM found, stopped
)
SELECT found.id FROM found;

-- name: NextReplays :many
-- NextReplays returns the replays of a sink that its owner works off in parallel: for each tenant, and for the replays
-- of all tenants, the 16 oldest. Further ones wait for those.
SELECT id, position, last_position, per_second, again, stop_live
FROM (
    SELECT id, position, last_position, per_second, again, stop_live, row_number() OVER (PARTITION BY tenant_id ORDER BY id) AS n
    FROM outbox.replays
    WHERE sink = @sink
      AND finished_at IS NULL
) AS running
WHERE n <= 16
ORDER BY id;

-- name: EventsToReplay :many
-- EventsToReplay returns the next events of a replay up to a position, and the bytes that each counts for, as in
-- EventsAfter.
SELECT position, at, id, tenant_id, topic, key, content_type, payload, headers, bytes
FROM (
    SELECT *, sum(bytes) OVER (ORDER BY position GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT event.position, event.at, event.id, event.tenant_id, event.topic, event.key, event.content_type, event.payload, event.headers,
               octet_length(event.payload) + CASE
                   WHEN event.headers IS NULL THEN 0
                   WHEN pg_column_size(event.headers) < 2048 THEN octet_length(event.headers::text)
                   ELSE least(pg_column_size(event.headers), 4194304)
                       * CASE pg_column_compression(event.headers) WHEN 'pglz' THEN 88 WHEN 'lz4' THEN 255 ELSE 1 END
               END AS bytes
        FROM outbox.events AS event
        JOIN outbox.replays AS replay ON replay.id = @replay
        WHERE event.position > @after
          AND event.position <= @up_to
          AND event.at >= replay.since
          AND event.at < replay.until
          AND (replay.tenant_id IS NULL OR event.tenant_id = replay.tenant_id)
          AND (replay.key = '' OR event.key = replay.key)
          AND (cardinality(replay.topics) = 0 OR EXISTS (
              SELECT FROM unnest(replay.topics) AS pattern
              WHERE event.topic = pattern OR (right(pattern, 1) = '*' AND starts_with(event.topic, left(pattern, -1)))))
        ORDER BY event.position
        FETCH FIRST (@most::bigint) ROWS WITH TIES
    ) AS next
) AS next
WHERE coalesce(before, 0) < @max_bytes::bigint;

-- name: AdvanceReplay :many
-- AdvanceReplay stores how far a replay has come. It returns nothing if the replay was stopped, or if another process
-- owns the sink now. The commit waits for no disk: events whose progress it loses are published again.
UPDATE outbox.replays
SET position    = greatest(replays.position, @position::bigint),
    published   = replays.published + @published::bigint,
    refused     = replays.refused + @refused::bigint,
    repeated    = replays.repeated + @repeated::bigint,
    failure     = sqlc.narg(failure)::text,
    finished_at = CASE WHEN @position >= replays.last_position THEN clock_timestamp() END
WHERE replays.id = @id
  AND replays.finished_at IS NULL
  AND EXISTS (SELECT FROM outbox.sinks WHERE sinks.sink = replays.sink AND sinks.owner = @owner::text AND sinks.epoch = @epoch)
RETURNING replays.id, set_config('synchronous_commit', 'off', true)::text AS commits;

-- name: SinkRemembers :exec
-- SinkRemembers stores for how long the broker of a sink drops repeats of an id.
UPDATE outbox.sinks
SET remembers = @remembers::interval
WHERE sink = @sink
  AND owner = @owner::text
  AND epoch = @epoch;

-- name: CountHistory :one
-- CountHistory returns what ReplayHistory would store again: the number of jobs, how many of them have a sealed
-- payload, and their bytes. Copies themselves are not copied.
SELECT count(*) AS jobs, count(*) FILTER (WHERE starts_with(content_type, @sealed_prefix)) AS sealed,
       coalesce(sum(octet_length(payload)), 0)::bigint AS bytes, min(finished_at)::timestamptz AS oldest,
       max(finished_at)::timestamptz AS newest
FROM outbox.history
WHERE finished_at >= @since::timestamptz
  AND finished_at < @until::timestamptz
  AND status = 'succeeded'
  AND kind = @kind
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR tenant_id = sqlc.narg(tenant_id))
  AND (@key::text = '' OR key = @key)
  AND NOT coalesce(jsonb_exists(headers, 'posthaste-replay'), false);

-- name: ReplayHistory :one
-- ReplayHistory stores copies of jobs that have succeeded, in the order in which they did, each due @spacing after the
-- one before: all of them, or none if they are more than @max_rows. Copies of a key are ordered, and a dead one blocks
-- nothing.
WITH found AS MATERIALIZED (
    SELECT done.id, done.tenant_id, done.queue, done.kind, done.payload, done.content_type, done.key, done.headers, done.timeout, done.backoff,
           done.max_attempts, done.priority, done.streamed, row_number() OVER (ORDER BY done.finished_at, done.id) - 1 AS place
    FROM outbox.history AS done
    WHERE done.finished_at >= @since::timestamptz
      AND done.finished_at < @until::timestamptz
      AND done.status = 'succeeded'
      AND done.kind = @kind::text
      AND (sqlc.narg(tenant_id)::uuid IS NULL OR done.tenant_id = sqlc.narg(tenant_id))
      AND (@key::text = '' OR done.key = @key)
      AND NOT coalesce(jsonb_exists(done.headers, 'posthaste-replay'), false)
    LIMIT 1 + @max_rows::bigint
), counted AS MATERIALIZED (
    SELECT count(found.id) AS jobs, count(found.id) <= @max_rows::bigint AS fit FROM found
), stored AS (
    INSERT INTO outbox.jobs (id, tenant_id, run_at, queue, kind, payload, content_type, key, headers, timeout, backoff,
        max_attempts, priority, ordered, on_death, streamed)
    SELECT outbox.uuid_v7(), found.tenant_id, statement_timestamp() + found.place * @spacing::interval, found.queue,
           found.kind, found.payload, found.content_type, found.key,
        coalesce(found.headers, '{}') || jsonb_build_object('posthaste-replay', @id::text)
            || CASE WHEN @again::boolean THEN '{}' ELSE jsonb_build_object('posthaste-original-id', found.id) END,
        found.timeout, found.backoff, found.max_attempts, found.priority,
        CASE WHEN found.key IS NOT NULL THEN true END, CASE WHEN found.key IS NOT NULL THEN 'skip' END,
        CASE WHEN found.streamed IS NOT NULL THEN 1 END
    FROM found
    CROSS JOIN counted
    WHERE counted.fit
    ORDER BY found.place
    RETURNING jobs.id
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, target, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'history.replay', sqlc.narg(tenant_id)::uuid, @kind::text,
        '{"replay": null}', jsonb_build_object('replay', @id::text, 'jobs', counted.jobs, 'since', @since::timestamptz,
            'until', @until::timestamptz, 'key', @key::text, 'again', @again::boolean)
    FROM counted
    WHERE counted.fit AND counted.jobs > 0
)
SELECT counted.jobs, counted.fit, pg_notify('outbox_jobs', '')::text AS notified
FROM counted;
