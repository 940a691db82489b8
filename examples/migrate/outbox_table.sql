-- Moves the rows of a home-made outbox, or of Debezium's event router, into the log of events: each is in one of the
-- two at any time, and keeps its id, by which consumers know what they have seen. The order of an aggregate's events is
-- kept. Stop the old publisher first: a row that it has read and not deleted yet would be published twice.
WITH moved AS (
    DELETE FROM outbox_table
    WHERE id IN (SELECT id FROM outbox_table ORDER BY created_at, id LIMIT 10000 FOR UPDATE)
    RETURNING *
), in_order AS MATERIALIZED (
    SELECT * FROM moved ORDER BY created_at, id
)
SELECT count(outbox.publish(
    aggregatetype || '.' || type,
    payload,
    key             => aggregateid,
    id              => id,
    notify          => false
))
FROM in_order;
