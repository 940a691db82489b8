-- The span of a failed attempt, to which the next attempt's span is linked.
--
-- Locks: ACCESS EXCLUSIVE on outbox.attempts, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
-- A traceparent; NULL if the attempt had no span or one that was not sampled. It is here and not in outbox.jobs, so
-- that jobs that succeed at once, and programs without tracing, neither write nor read it.
ALTER TABLE outbox.attempts
    ADD COLUMN trace text;
