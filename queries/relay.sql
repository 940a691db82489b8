{{- /* The bytes that an event counts for; see EventsAfter. */}}
{{- define "event_bytes"}}octet_length(payload) + CASE
                   WHEN headers IS NULL THEN 0
                   WHEN pg_column_size(headers) < 2048 THEN octet_length(headers::text)
                   ELSE least(pg_column_size(headers), 4194304)
                       * CASE pg_column_compression(headers) WHEN 'pglz' THEN 88 WHEN 'lz4' THEN 255 ELSE 1 END
               END AS bytes{{end}}
{{- /* The first and the last position of each hole of a sink, in order. */}}
{{- define "hole_bounds"}}ARRAY(SELECT lower(hole) FROM unnest(holes) AS hole ORDER BY hole)::bigint[]     AS lows,
       ARRAY(SELECT upper(hole) - 1 FROM unnest(holes) AS hole ORDER BY hole)::bigint[] AS highs{{end -}}
-- name: SinkLapsesIn :one
-- SinkLapsesIn returns in how many seconds the sink can be taken, if its owner does nothing about it.
SELECT (CASE WHEN owner IS NULL OR owner = @owner::text OR {{lapsed "lease_expires_at"}} THEN 0
             ELSE greatest(extract(epoch FROM lease_expires_at - clock_timestamp()), 0) END)::float8
FROM outbox.sinks
WHERE sink = @sink;

-- name: OwnSink :many
-- OwnSink makes a process the owner of a sink that nobody owns, whose lease has lapsed, or that it owns already. The
-- epoch changes, so that whatever the former owner has under way is refused.
--
-- If positions come from another timeline, a failover may have lost events that the sink has passed, and their
-- positions are given out again. It has lost none if the last published event is still there: the record that gave it
-- its position reached the disk before its commit did, so that all positions to come are higher. So after a planned
-- switchover nothing is repeated. Otherwise the sink goes back to the older one of two marks, which AdvanceSink moves
-- on:
--
--	                        marks
--	09:00                      0     100 of 09:00
--	09:05                    100     900 of 09:05
--	09:09    failover: what was stored since 09:08 is lost, and 1500 to 1700 are given out again
--	09:09    100 is the top
--
-- When a mark becomes the older one, its age is the distance that a rewind must go back; when the next one does, it is
-- about twice as old. The age counts from the last AdvanceSink, so it does not matter how long nobody has owned the
-- sink, and no event is read to find it.
--
-- If positions that are in the log are yet to be given out, as after a logical copy without its sequences, behind is
-- the last of those. Events stored since the copy, and events to come until the sequence is corrected, lie below the
-- sink's top: the sink goes back to before all of them. The newer mark is older than the copy, and the first position
-- of the days since then is found at once. The same applies if the sink has passed positions that are yet to be given
-- out.
WITH found AS MATERIALIZED (
    SELECT sinks.sink, sinks.top AS was, coalesce(sinks.rewind_top, 0) AS rewind_top, sinks.mark_at,
           sinks.timeline NOT IN ('', outbox.timeline())
           AND NOT EXISTS (SELECT FROM outbox.events WHERE position = sinks.top AND id = sinks.top_id) AS lost
    FROM outbox.sinks
    WHERE sinks.sink = @sink
      AND (owner IS NULL OR owner = @owner::text OR {{lapsed "lease_expires_at"}})
    FOR UPDATE
), log AS MATERIALIZED (
    SELECT found.sink, (SELECT max(position) FROM outbox.events) AS newest,
           (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM outbox.events_position_seq) AS last
    FROM found
), goal AS MATERIALIZED (
    SELECT found.sink, found.was, CASE WHEN log.newest > log.last THEN log.newest ELSE 0 END AS behind,
           CASE
               WHEN greatest(found.was, log.newest) > log.last THEN least(found.was, found.rewind_top, log.last, (
                   SELECT position - 1 FROM outbox.events
                   WHERE at >= date_trunc('day', coalesce(found.mark_at, '-infinity'), 'UTC')
                   ORDER BY position
                   LIMIT 1))
               WHEN found.lost THEN least(found.was, found.rewind_top)
               ELSE found.was
           END AS top
    FROM found
    JOIN log USING (sink)
)
UPDATE outbox.sinks
SET owner            = @owner::text,
    epoch            = epoch + 1,
    lease_expires_at = clock_timestamp() + @lease_ttl::interval,
    timeline         = outbox.timeline(),
    top              = goal.top,
    top_id           = (SELECT id FROM outbox.events WHERE position = goal.top ORDER BY at DESC LIMIT 1),
    holes            = sinks.holes * int8multirange(int8range(NULL, goal.top, '[]')),
    rewind_top       = least(sinks.rewind_top, goal.top),
    mark_top         = least(sinks.mark_top, goal.top)
FROM goal
WHERE sinks.sink = goal.sink
RETURNING sinks.epoch, sinks.top, sinks.timeline,
          (paused_at IS NOT NULL)::boolean AS paused,
          coalesce((SELECT replays.id::text FROM outbox.replays
                    WHERE replays.sink = @sink AND replays.stop_live AND replays.finished_at IS NULL AND replays.last_position <= sinks.top
                    ORDER BY replays.id LIMIT 1), '')::text AS alone,
          {{template "hole_bounds"}},
          goal.was::bigint AS was,
          goal.behind::bigint AS behind,
          coalesce(extract(epoch FROM clock_timestamp() - sinks.away_since), 0)::float8 AS away_for,
          coalesce(sinks.away_code, '')::text AS away_code,
          coalesce(sinks.away_message, '')::text AS away_message,
          (SELECT coalesce(jsonb_object_agg(key, extract(epoch FROM clock_timestamp())::float8 - value::float8), '{}')
           FROM jsonb_each_text(sinks.missing))::text AS missing;

-- name: AdvanceSink :many
-- AdvanceSink stores how far a sink has come, and extends the lease. It returns nothing if another process owns the
-- sink now, or if positions come from another timeline. An asynchronous commit waits for no disk: events whose progress
-- it loses are published again, under the same ids. @top_id is the id of the event at @top, which the owner has read,
-- or NULL if @top has not moved: to look it up here would set up a scan of every day of the log with each store. Once
-- the newer mark is as old as a rewind must go back, it becomes the older one. @missing is for how many seconds
-- destinations have been missing, as in OwnSink; NULL keeps the stored value.
UPDATE outbox.sinks
SET top      = @top,
    top_id   = coalesce(sqlc.narg(top_id)::uuid, CASE WHEN top = @top THEN top_id END),
    holes    = (SELECT coalesce(range_agg(int8range(low, high, '[]')), '{}')
                FROM (SELECT unnest(@lows::bigint[]) AS low, unnest(@highs::bigint[]) AS high) AS hole),
    moved_at = CASE WHEN @published::bigint > 0 THEN clock_timestamp() ELSE moved_at END,
    published        = published + @published,
    lease_expires_at = clock_timestamp() + @lease_ttl::interval,
    away_since       = clock_timestamp() - sqlc.narg(away_for)::interval,
    away_code        = sqlc.narg(away_code)::text,
    away_message     = sqlc.narg(away_message)::text,
    missing          = CASE WHEN sqlc.narg(missing)::text IS NULL THEN missing ELSE (
        SELECT coalesce(jsonb_object_agg(key, extract(epoch FROM clock_timestamp())::float8 - value::float8), '{}')
        FROM jsonb_each_text(sqlc.narg(missing)::text::jsonb)) END,
    rewind_top       = CASE WHEN mark_at > statement_timestamp() - @rewind::interval THEN rewind_top ELSE mark_top END,
    mark_top         = CASE WHEN mark_at > statement_timestamp() - @rewind::interval THEN mark_top ELSE @top END,
    mark_at          = CASE WHEN mark_at > statement_timestamp() - @rewind::interval THEN mark_at ELSE statement_timestamp() END
WHERE sink = @sink
  AND owner = @owner::text
  AND epoch = @epoch
  AND timeline = outbox.timeline()
RETURNING (paused_at IS NOT NULL)::boolean AS paused,
          (SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM outbox.events_position_seq)::bigint AS last,
          set_config('synchronous_commit',
              CASE WHEN @lazily::boolean THEN 'off' ELSE current_setting('synchronous_commit') END, true)::text AS commits;

-- name: SinkWaits :one
-- SinkWaits returns how long the oldest unpublished event has waited; NULL if there is none. It uses the database's
-- clock, because the relay's may be wrong. It stops at the first event at a hole: only those of transactions that are
-- running, or were rolled back since the oldest of these began, have none. It runs often, so it looks at ten thousand
-- holes at most: behind more without an event, it returns how long a newer one has waited, or NULL.
SELECT (clock_timestamp() - least(
    (SELECT at FROM outbox.events WHERE position > sinks.top ORDER BY position LIMIT 1),
    (SELECT event.at
     FROM (SELECT hole FROM unnest(sinks.holes) AS hole ORDER BY hole LIMIT 10000) AS first
     CROSS JOIN LATERAL (
         SELECT at FROM outbox.events WHERE position BETWEEN lower(hole) AND upper(hole) - 1 ORDER BY position LIMIT 1
     ) AS event
     ORDER BY hole
     LIMIT 1)
))::interval AS waits
FROM outbox.sinks
WHERE sink = @sink;

-- name: LeaveSink :exec
-- LeaveSink gives a sink up and wakes the processes that wait for it.
WITH left_now AS (
    UPDATE outbox.sinks
    SET owner = NULL, lease_expires_at = NULL
    WHERE sink = @sink
      AND owner = @owner::text
      AND epoch = @epoch
    RETURNING sink
)
SELECT pg_notify('outbox_events', '') FROM left_now;

-- name: EventsAfter :many
-- EventsAfter returns the next events after a position, up to about max_bytes, and the bytes that each counts for.
-- Headers of 2 KiB and more count with their stored size, because measuring their text would decompress the headers of
-- a thousand events to return a few. Compressed data counts with its largest possible size: 88 times its size with
-- pglz, and 255 times with lz4. Integers suffice because 4 MiB and more count the same.
--
-- A page ends between two positions. Two events may share a position: after a copy without its sequences, events get
-- positions that are in the log already, until the sequence is corrected.
SELECT position, at, id, tenant_id, topic, key, content_type, payload, headers, bytes
FROM (
    SELECT *, sum(bytes) OVER (ORDER BY position GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (
        SELECT position, at, id, tenant_id, topic, key, content_type, payload, headers,
               {{template "event_bytes"}}
        FROM outbox.events
        WHERE position > @after
        ORDER BY position
        FETCH FIRST (@most::bigint) ROWS WITH TIES
    ) AS next
) AS next
WHERE coalesce(before, 0) < @max_bytes::bigint;

-- name: EventsAtHoles :many
-- EventsAtHoles returns the events that have come to holes since, and the bytes that each counts for, as in
-- EventsAfter.
SELECT position, at, id, tenant_id, topic, key, content_type, payload, headers, bytes
FROM (
    SELECT event.*, sum(bytes) OVER (ORDER BY position GROUPS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
    FROM (SELECT unnest(@lows::bigint[]) AS low, unnest(@highs::bigint[]) AS high) AS hole
    CROSS JOIN LATERAL (
        SELECT position, at, id, tenant_id, topic, key, content_type, payload, headers,
               {{template "event_bytes"}}
        FROM outbox.events
        WHERE position BETWEEN hole.low AND hole.high
        ORDER BY position
        FETCH FIRST (@most::bigint) ROWS WITH TIES
    ) AS event
    ORDER BY position
    FETCH FIRST (@most::bigint) ROWS WITH TIES
) AS event
WHERE coalesce(before, 0) < @max_bytes::bigint;

-- name: RunningTransactions :one
-- RunningTransactions returns which transactions are running, as a pg_snapshot.
SELECT pg_current_snapshot()::text AS running;

-- name: NewTransaction :one
-- NewTransaction returns an id above those of all transactions that have one already.
SELECT pg_current_xact_id()::text::bigint AS xid;

-- name: SinkCursor :many
-- SinkCursor returns the position of a sink in the log.
SELECT top,
       {{template "hole_bounds"}}
FROM outbox.sinks
WHERE sink = @sink;

-- name: LogTimeline :one
-- LogTimeline returns the timeline from which positions come.
SELECT outbox.timeline()::text AS timeline;
