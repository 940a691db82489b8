-- Replays that hold back what is new, and what a bridge waits for.
--
-- Locks: ACCESS EXCLUSIVE on outbox.replays and outbox.inbox_positions, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
-- The sink publishes nothing new while the replay runs.
ALTER TABLE outbox.replays
    ADD COLUMN stop_live boolean NOT NULL DEFAULT false;

-- Of bridges: how many messages are behind those that were fetched, as far as the broker says so, and since when and
-- why no messages are stored.
ALTER TABLE outbox.inbox_positions
    ADD COLUMN lag          bigint,
    ADD COLUMN away_since   timestamptz,
    ADD COLUMN away_message text;
