-- name: PublishEvent :exec
-- PublishEvent stores one event and, if asked, wakes the relays when the caller's transaction commits: one statement,
-- one round trip.
INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
VALUES (@id::uuid, @tenant_id::uuid, @topic::text, sqlc.narg('key')::text, @content_type::text, @payload::bytea,
    sqlc.narg('headers')::text::jsonb)
RETURNING CASE WHEN @notify::boolean THEN pg_notify('outbox_events', '') END;

-- name: PublishSerialEvent :exec
-- PublishSerialEvent is PublishEvent after taking the lock of the key, which is held until the transaction ends;
-- outbox.publish takes the same lock. The row, and with it its position, is made while the lock is held.
WITH serial AS MATERIALIZED (
    SELECT pg_advisory_xact_lock(hashtextextended(sqlc.narg('key')::text, hashtextextended(CAST(@tenant_id::uuid AS text), 0))) AS held
)
INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
SELECT @id::uuid, @tenant_id::uuid, @topic::text, sqlc.narg('key')::text, @content_type::text, @payload::bytea,
    sqlc.narg('headers')::text::jsonb
FROM serial
WHERE held IS NOT NULL
RETURNING CASE WHEN @notify::boolean THEN pg_notify('outbox_events', '') END;

-- name: HoldEventKeys :exec
-- HoldEventKeys takes the locks of keys as PublishSerialEvent does, in an order that all callers share.
SELECT pg_advisory_xact_lock(lock)
FROM (
    SELECT DISTINCT hashtextextended(input.key, hashtextextended(input.tenant_id::text, 0)) AS lock
    FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id, unnest(@keys::text[]) AS key) AS input
    ORDER BY lock
) AS held;

-- name: PublishEvents :exec
-- PublishEvents stores many events at once, with positions in the order of the arrays, and, if asked, wakes the relays
-- when the transaction commits. A column that all events leave to its default is NULL instead of a list.
WITH stored AS (
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    SELECT id, coalesce(tenant_id, '00000000-0000-0000-0000-000000000001'), topic, nullif(key, ''),
           coalesce(content_type, 'application/json'), payload, nullif(headers, '')::jsonb
    FROM (
        SELECT unnest(@ids::uuid[])           AS id,
               unnest(@tenant_ids::uuid[])    AS tenant_id,
               unnest(@topics::text[])        AS topic,
               unnest(@keys::text[])          AS key,
               unnest(@content_types::text[]) AS content_type,
               unnest(@payloads::bytea[])     AS payload,
               unnest(@headers::text[])       AS headers
    ) AS input
)
SELECT CASE WHEN @notify::boolean THEN pg_notify('outbox_events', '') END;
