{{- /* The last position that was given out: 0 if none was. */}}
{{- define "last"}}CASE WHEN is_called THEN last_value ELSE last_value - 1 END{{end}}
{{- /* Of the positions that a sink passes, the last ten thousand: there a transaction that is still open may have taken one. */}}
{{- define "recent"}}int8range(least(greatest(found.top, target.position - 10000), target.position) + 1, target.position + 1){{end}}
{{- /* The positions of what a sink passes at which an event is visible. The others become holes. */}}
{{- define "visible"}}SELECT coalesce(range_agg(int8range(event.position, event.position, '[]')), '{}') AS positions
    FROM passed
    CROSS JOIN LATERAL unnest(passed.positions) AS hole
    JOIN outbox.events AS event ON event.position BETWEEN lower(hole) AND upper(hole) - 1{{end -}}
-- name: DeclareSink :many
-- DeclareSink creates a sink if there is none of the name, and returns the position after which it begins: 0, or with
-- @at_end the last one. Then all visible events count as published. As in SeekSink, those of open transactions do not
-- if they are among the last ten thousand positions, and no failover takes the sink back to before its beginning.
WITH found AS (
    SELECT 0::bigint AS top WHERE NOT EXISTS (SELECT FROM outbox.sinks WHERE sinks.sink = @sink)
), target AS (
    SELECT CASE WHEN @at_end::boolean THEN {{template "last"}} ELSE 0 END AS position FROM outbox.events_position_seq
), passed AS (
    SELECT int8multirange({{template "recent"}}) AS positions FROM found, target
), seen AS (
    {{template "visible"}}
)
INSERT INTO outbox.sinks (sink, top, top_id, rewind_top, mark_top, holes)
SELECT @sink, target.position,
       (SELECT id FROM outbox.events WHERE events.position = target.position ORDER BY at DESC LIMIT 1),
       target.position, target.position, passed.positions - seen.positions
FROM target, passed, seen
ON CONFLICT DO NOTHING
RETURNING sinks.top;

-- name: ListSinks :many
-- ListSinks returns all sinks by name, with the end of the log and the oldest event that waits: after the sink's
-- position, or at one of its holes. Like SinkWaits it looks at ten thousand holes at most. A process whose lease has
-- lapsed is no owner, and its state is ignored.
SELECT sink, top, holes_are.positions AS holes, coalesce(CASE WHEN state.owned THEN owner END, '')::text AS owner, published, moved_at,
       (CASE WHEN state.owned THEN away_since END)::timestamptz AS away_since,
       coalesce(CASE WHEN state.owned THEN away_code END, '')::text AS away_code,
       coalesce(CASE WHEN state.owned THEN away_message END, '')::text AS away_message, paused_at,
       (SELECT {{template "last"}} FROM outbox.events_position_seq)::bigint AS last, held.messages AS held_messages, held.keys AS held_keys,
       least(
           (SELECT at FROM outbox.events WHERE position > sinks.top ORDER BY position LIMIT 1),
           (SELECT event.at
            -- In order already, the look ends at the first hole with an event.
            FROM (SELECT hole FROM unnest(sinks.holes) AS hole ORDER BY hole LIMIT 10000) AS first
            CROSS JOIN LATERAL (
                SELECT at FROM outbox.events WHERE position BETWEEN lower(hole) AND upper(hole) - 1 ORDER BY position LIMIT 1
            ) AS event
            ORDER BY first.hole
            LIMIT 1))::timestamptz AS oldest
FROM outbox.sinks
CROSS JOIN LATERAL (SELECT (owner IS NOT NULL AND NOT {{lapsed "lease_expires_at"}})::boolean AS owned) AS state
CROSS JOIN LATERAL (
    SELECT coalesce(sum(upper(hole) - lower(hole)), 0)::bigint AS positions FROM unnest(sinks.holes) AS hole
) AS holes_are
CROSS JOIN LATERAL (
    SELECT count(*) AS messages, count(DISTINCT (held.tenant_id, held.key)) FILTER (WHERE held.key IS NOT NULL) AS keys
    FROM outbox.held_messages AS held
    WHERE held.sink = sinks.sink
) AS held
ORDER BY sink;

-- name: LockSink :exec
-- LockSink locks a sink until the transaction ends.
SELECT 1 FROM outbox.sinks WHERE sinks.sink = @sink FOR UPDATE;

-- name: PauseSink :many
-- PauseSink makes the sink's owner publish nothing after it next reports. It returns the sink, if there is one.
WITH found AS MATERIALIZED (
    SELECT sinks.sink, sinks.paused_at FROM outbox.sinks WHERE sinks.sink = @sink FOR UPDATE
), paused AS (
    UPDATE outbox.sinks
    SET paused_at = statement_timestamp()
    FROM found
    WHERE sinks.sink = found.sink
      AND found.paused_at IS NULL
    RETURNING sinks.sink, sinks.paused_at
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'sink.pause', paused.sink,
        '{"paused_at": null}', jsonb_build_object('paused_at', paused.paused_at)
    FROM paused
)
SELECT found.sink FROM found;

-- name: ResumeSink :many
-- ResumeSink lets the sink's owner continue, and wakes it. It returns the sink, if there is one.
WITH found AS MATERIALIZED (
    SELECT sinks.sink, sinks.paused_at FROM outbox.sinks WHERE sinks.sink = @sink FOR UPDATE
), resumed AS (
    UPDATE outbox.sinks
    SET paused_at = NULL
    FROM found
    WHERE sinks.sink = found.sink
      AND found.paused_at IS NOT NULL
    RETURNING sinks.sink
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'sink.resume', found.sink,
        jsonb_build_object('paused_at', found.paused_at), '{"paused_at": null}'
    FROM found, resumed
)
SELECT found.sink, coalesce((SELECT pg_notify('outbox_events', '')::text FROM resumed), '')::text AS notified FROM found;

-- name: FindUnpublished :many
-- FindUnpublished returns the position of an event that a sink has not published, among those from the sink's first
-- hole on.
SELECT event.position, event.tenant_id
FROM outbox.sinks
JOIN outbox.events AS event
  ON event.position > sinks.top OR sinks.holes @> event.position
WHERE sinks.sink = @sink
  AND event.id = @id
  AND event.position >= coalesce(lower(sinks.holes), sinks.top)
ORDER BY event.position
LIMIT 1;

-- name: SkipEvent :many
-- SkipEvent makes a sink count the event at a position as published. Afterwards the sink has no owner: the former one
-- reads the cursor again, and whatever it has under way is refused.
WITH skipped AS (
    UPDATE outbox.sinks
    SET top    = greatest(top, @position::bigint),
        top_id = CASE WHEN @position > top THEN @event_id::uuid ELSE top_id END,
        holes  = holes + int8multirange(int8range(least(top + 1, @position), @position))
                 - int8multirange(int8range(@position, @position, '[]')),
        epoch            = epoch + 1,
        owner            = NULL,
        lease_expires_at = NULL
    WHERE sink = @sink
      AND (@position > top OR holes @> @position)
    RETURNING sink
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, tenant_id, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'sink.skip', skipped.sink, @tenant_id,
        '{"waits": true}', jsonb_build_object('waits', false, 'event_id', @event_id::uuid, 'position', @position)
    FROM skipped
)
SELECT skipped.sink, pg_notify('outbox_events', '')::text AS notified FROM skipped;

-- name: RemoveSink :many
-- RemoveSink deletes a sink that no process has owned for a minute and whose messages are no open jobs. It also deletes
-- which of its events were jobs, and which keys were parked: another sink may use the name. It returns the sink, if
-- there is one, and whether it is gone.
WITH RECURSIVE found AS MATERIALIZED (
    SELECT sinks.sink, sinks.top, sinks.published,
           {{lapsed "sinks.lease_expires_at + interval '1 minute'"}} AS free,
           (SELECT count(*)
            FROM outbox.held_messages AS held
            JOIN outbox.jobs ON jobs.id = ANY (ARRAY[held.job_id])
            WHERE held.sink = sinks.sink) AS held
    FROM outbox.sinks
    WHERE sinks.sink = @sink::text
    FOR UPDATE
), removed AS (
    DELETE FROM outbox.sinks
    USING found
    WHERE sinks.sink = found.sink
      AND found.free
      AND found.held = 0
    RETURNING sinks.sink
), forgotten AS (
    DELETE FROM outbox.held_messages
    USING removed
    WHERE held_messages.sink = removed.sink
), tenants (tenant_id) AS ( -- tenants with keys, one after the other: every index begins with the tenant or the job
    SELECT (SELECT first.tenant_id FROM outbox.idempotency_keys AS first ORDER BY first.tenant_id LIMIT 1) FROM removed
    UNION ALL
    SELECT (SELECT next.tenant_id FROM outbox.idempotency_keys AS next WHERE next.tenant_id > tenants.tenant_id ORDER BY next.tenant_id LIMIT 1)
    FROM tenants
    WHERE tenants.tenant_id IS NOT NULL
), freed AS (
    DELETE FROM outbox.idempotency_keys
    WHERE idempotency_keys.ctid = ANY (ARRAY(
        SELECT of_sink.place
        FROM tenants
        CROSS JOIN LATERAL (
            SELECT keys.ctid AS place
            FROM outbox.idempotency_keys AS keys
            WHERE keys.tenant_id = tenants.tenant_id AND keys.kind = 'relay:' || @sink::text
            OFFSET 0
        ) AS of_sink
    ))
), unblocked AS (
    DELETE FROM outbox.keys
    USING removed
    WHERE keys.queue = 'relay:' || removed.sink
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, before)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'sink.remove', found.sink,
        jsonb_build_object('position', found.top, 'published', found.published)
    FROM found, removed
)
SELECT found.sink, found.free::boolean AS free, found.held FROM found;

-- name: PositionSince :one
-- PositionSince returns the position before the first event that was stored from a time on; if there is none, and for
-- infinity, the end of the log.
SELECT coalesce(min(position) - 1, (SELECT {{template "last"}} FROM outbox.events_position_seq))::bigint AS before
FROM outbox.events
WHERE at >= @since::timestamptz;

-- name: SinkMove :many
-- SinkMove returns where a sink is, and how many events are between there and a position: to be skipped, together with
-- those that wait at holes, or to be published again.
SELECT sinks.top, (SELECT {{template "last"}} FROM outbox.events_position_seq)::bigint AS last,
       ((SELECT count(*)
         FROM outbox.events
         WHERE position > least(sinks.top, @position::bigint) AND position <= greatest(sinks.top, @position))
        + CASE WHEN @position > sinks.top THEN (
            SELECT count(*)
            FROM unnest(sinks.holes) AS hole
            JOIN outbox.events ON position BETWEEN lower(hole) AND upper(hole) - 1) ELSE 0 END)::bigint AS events
FROM outbox.sinks
WHERE sink = @sink;

-- name: SeekSink :many
-- SeekSink makes a sink continue after a position of the log, unless the sink is no longer on the same side of it as
-- when it was seen: a sink that has passed the position meanwhile does not go back to it. Going forward counts all
-- visible events up to there as published; among the last ten thousand positions those without an event become holes,
-- whose transactions may still run. Going back lets events become jobs again if their jobs are closed and the sink
-- refuses them again. A failover undoes neither: the sink's marks move to the new position. Afterwards the sink has no
-- owner: the former one reads the cursor again, and whatever it has under way is refused. SeekSink returns where the
-- sink was, whether it has moved, and how many events that skips or publishes again.
WITH RECURSIVE target AS (
    SELECT @position::bigint AS position, {{template "last"}} AS last FROM outbox.events_position_seq
), found AS MATERIALIZED (
    SELECT sinks.sink, sinks.top, sinks.holes FROM outbox.sinks WHERE sinks.sink = @sink::text FOR UPDATE
), passed AS (
    SELECT found.sink, found.top, target.position > found.top AS forward,
           (found.holes + int8multirange({{template "recent"}}))
           * int8multirange(int8range(NULL, target.position, '[]')) AS positions
    FROM found, target
    WHERE sign(target.position - found.top) = sign(target.position - @seen_at::bigint)
      AND target.position BETWEEN 0 AND target.last
), counted AS ( -- as in SinkMove
    SELECT (SELECT count(*)
            FROM outbox.events
            WHERE events.position > least(passed.top, target.position)
              AND events.position <= greatest(passed.top, target.position))
           + CASE WHEN passed.forward THEN (
               SELECT count(*)
               FROM found
               CROSS JOIN LATERAL unnest(found.holes) AS hole
               JOIN outbox.events AS event ON event.position BETWEEN lower(hole) AND upper(hole) - 1) ELSE 0 END AS events
    FROM passed, target
), seen AS (
    {{template "visible"}}
    WHERE passed.forward
), moved AS (
    UPDATE outbox.sinks
    SET top    = target.position,
        top_id = (SELECT id FROM outbox.events WHERE events.position = target.position ORDER BY at DESC LIMIT 1),
        rewind_top = target.position,
        mark_top   = target.position,
        holes  = passed.positions - seen.positions,
        epoch            = epoch + 1,
        owner            = NULL,
        lease_expires_at = NULL
    FROM passed, seen, target
    WHERE sinks.sink = passed.sink
    RETURNING sinks.sink, passed.top AS was
), tenants (tenant_id) AS ( -- as in RemoveSink
    SELECT (SELECT first.tenant_id FROM outbox.idempotency_keys AS first ORDER BY first.tenant_id LIMIT 1) FROM passed WHERE NOT passed.forward
    UNION ALL
    SELECT (SELECT next.tenant_id FROM outbox.idempotency_keys AS next WHERE next.tenant_id > tenants.tenant_id ORDER BY next.tenant_id LIMIT 1)
    FROM tenants
    WHERE tenants.tenant_id IS NOT NULL
), freed AS (
    DELETE FROM outbox.idempotency_keys
    WHERE idempotency_keys.ctid = ANY (ARRAY(
        SELECT of_sink.place
        FROM tenants
        CROSS JOIN LATERAL (
            SELECT keys.ctid AS place
            FROM outbox.idempotency_keys AS keys
            WHERE keys.tenant_id = tenants.tenant_id AND keys.kind = 'relay:' || @sink::text
            OFFSET 0
        ) AS of_sink
    ))
      AND NOT EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = ANY (ARRAY[idempotency_keys.job_id]) OFFSET 0)
), recorded AS (
    INSERT INTO outbox.audit (actor, request_id, reason, act, target, before, after)
    SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'sink.seek', moved.sink,
        jsonb_build_object('position', moved.was), jsonb_build_object('position', target.position)
    FROM moved, target
)
SELECT found.top AS was, target.last::bigint AS last, (moved.sink IS NOT NULL)::boolean AS moved,
       coalesce(counted.events, 0)::bigint AS events,
       coalesce((SELECT pg_notify('outbox_events', '')::text FROM moved), '')::text AS notified
FROM target
CROSS JOIN found
LEFT JOIN moved ON true
LEFT JOIN counted ON true;
