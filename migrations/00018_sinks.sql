-- What a sink's next owner has to know: where to go back to after a failover, and since when destinations are missing.
--
-- Locks: ACCESS EXCLUSIVE on outbox.sinks, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
-- Two marks, each a top that was stored some time ago. The newer one takes the older one's place once it is as old as a
-- rewind is to go back. NULL: no build that keeps marks has owned the sink.
ALTER TABLE outbox.sinks
    ADD COLUMN rewind_top bigint,
    ADD COLUMN mark_top   bigint,
    ADD COLUMN mark_at    timestamptz,
    -- An object of destinations that the broker does not have: since when, in seconds of the epoch.
    ADD COLUMN missing    jsonb NOT NULL DEFAULT '{}';
