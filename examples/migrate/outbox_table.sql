-- Moves the rows of an outbox table of your own into the log of events: each is in one of the two at any time, and
-- keeps its id, by which consumers know what they have seen. Up to 10 000 rows each time, until it returns 0; they are
-- published in the order of seq: put in the column by which your old publisher sorts, and the names of your table and
-- columns. Stop the old publisher first: a row that it has read and not deleted yet would be published twice. If it
-- marks rows instead, delete those that it has marked.
WITH moved AS (
    DELETE FROM outbox_table
    WHERE id IN (SELECT id FROM outbox_table ORDER BY seq LIMIT 10000 FOR UPDATE)
    RETURNING *
), in_order AS MATERIALIZED (
    SELECT * FROM moved ORDER BY seq
)
SELECT count(outbox.publish(
    topic,
    payload,
    key             => key,
    id              => id,
    notify          => false
))
FROM in_order;
