-- What one reaper counts and the others show.
--
-- Columns that are NULL in every row: ACCESS EXCLUSIVE on the table, which has a few rows, for a change of the
-- catalog, and no row is read or written.

-- +goose Up
ALTER TABLE outbox.chores
    ADD COLUMN free_at timestamptz, -- from when on another process may do the chore
    ADD COLUMN found   jsonb;       -- what it has found at done_at
