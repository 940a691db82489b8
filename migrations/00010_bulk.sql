-- Acts on many open jobs.
--
-- Locks: ACCESS EXCLUSIVE on outbox.operations, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
-- The jobs that an operation is still to act on: those that a person was shown. A step deletes those that it has acted
-- on, in its own transaction; so a process that dies leaves them. A new table: nothing is locked.
CREATE TABLE outbox.operation_jobs (
    operation_id uuid NOT NULL, -- without a foreign key: it would be looked up once a job
    job_id       uuid NOT NULL,
    tenant_id    uuid NOT NULL, -- the job's

    PRIMARY KEY (operation_id, job_id)
);

-- Columns that are NULL in every row. An act on open jobs has next_at at infinity: a build that does not know of it
-- would take its row for an act on dead letters, and does not take it at all.
ALTER TABLE outbox.operations
    ADD COLUMN open_act text,        -- cancel, release, retry: what is done to open jobs, in place of act
    ADD COLUMN open_at  timestamptz; -- and when its next step may begin, in place of next_at
