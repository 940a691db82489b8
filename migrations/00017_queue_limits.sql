-- Limits of a queue across all processes: jobs that run at once, and starts per
-- interval. Takes ACCESS EXCLUSIVE on outbox.queues for a moment; it has a row for
-- each queue that somebody has paused once.
--
-- Plain claims refuse a limited queue by the check that refuses a paused one, and
-- so pay nothing. A claim of a limited queue is a transaction of several
-- statements (dispatcher/limit.go): it locks the queue's row in queue_usage, looks
-- at what runs in a statement of its own, claims so much that both limits are
-- kept, notes what it has started, and commits.

-- +goose Up
ALTER TABLE outbox.queues
    ADD COLUMN max_running   integer,  -- jobs at once; NULL is any number
    ADD COLUMN rate          integer,  -- starts in any span of rate_interval; NULL is any number
    ADD COLUMN rate_interval interval,
    ADD COLUMN limited_at    timestamptz, -- when a limit was set last
    ADD COLUMN limited       boolean NOT NULL GENERATED ALWAYS AS (max_running IS NOT NULL OR rate IS NOT NULL) STORED,
    -- A claim looks up each running job of a limited queue: hence the bound.
    ADD CONSTRAINT queues_max_running CHECK (max_running BETWEEN 1 AND 10000),
    ADD CONSTRAINT queues_rate CHECK (
        (rate IS NULL) = (rate_interval IS NULL)
        AND rate BETWEEN 1 AND 1000000
        AND rate_interval BETWEEN interval '10 milliseconds' AND interval '31 days');

-- How much of a queue's limits is used up: changed only by who holds the row's
-- lock. It is no part of outbox.queues, because that is read by every claim of
-- every queue, and this is written by every limited one.
CREATE TABLE outbox.queue_usage (
    queue        text COLLATE "C" NOT NULL PRIMARY KEY,
    running      uuid[]           NOT NULL DEFAULT '{}', -- jobs that limited claims have started; those that run no more are found out by looking
    counted_at   timestamptz, -- when all running jobs of the queue were looked for last
    start_times  timestamptz[]    NOT NULL DEFAULT '{}', -- the latest start of each hundredth of the interval,
    start_counts integer[]        NOT NULL DEFAULT '{}'  -- and how many there were
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 100);

SELECT outbox.secure(); -- the table is newer than 00014_roles.sql

-- +goose Down
DROP TABLE outbox.queue_usage;
ALTER TABLE outbox.queues
    DROP COLUMN limited,
    DROP COLUMN limited_at,
    DROP COLUMN rate_interval,
    DROP COLUMN rate,
    DROP COLUMN max_running;
