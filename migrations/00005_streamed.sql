-- Schedules of streamed jobs.
--
-- A column that is NULL in every row: ACCESS EXCLUSIVE on the table for a change of the catalog,
-- and no row is read or written.

-- +goose Up
ALTER TABLE outbox.schedules ADD COLUMN streamed boolean; -- NULL for false, as hold
