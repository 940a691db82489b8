-- What GET /events reads: an index that finds the newest rows of the history.
--
-- A BRIN index is a few bytes for each half a megabyte of rows, and what is inserted
-- at the end of the table looks at one page of it and writes nothing: settlements do
-- not pay for readers. Building it reads the history once, and holds up settlements
-- meanwhile (SHARE): with a history of many gigabytes build it on each partition
-- with CREATE INDEX CONCURRENTLY, under any name, beforehand; they are then attached.

-- +goose Up
CREATE INDEX history_finished_at_idx ON outbox.history USING brin (finished_at) WITH (pages_per_range = 64, autosummarize = on);

-- +goose Down
DROP INDEX outbox.history_finished_at_idx;
