-- Edits of many waiting jobs.
--
-- Locks: ACCESS EXCLUSIVE on outbox.operation_jobs, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
-- The epoch in which a job was counted: an edit changes it while it has that one, so nothing has happened to it since.
-- NULL in rows of operations that were started before.
ALTER TABLE outbox.operation_jobs
    ADD COLUMN epoch bigint;
