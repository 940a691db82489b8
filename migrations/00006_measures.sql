-- What charts are drawn from: how it went, minute by minute, for 14 days.
--
-- New tables: nothing is locked, and nothing that was there is read. One reaper fills them, once a minute
-- (queries/measure.sql says with what, and why it is never two).

-- +goose Up
-- A row for each time that everything was counted: whether there is one tells a minute in which nothing happened
-- from one in which nobody counted.
CREATE TABLE outbox.measured (
    at       timestamptz NOT NULL PRIMARY KEY, -- the end of the minute
    since    timestamptz NOT NULL,             -- from here on: the end of the row before, if that is near
    complete boolean     NOT NULL              -- false: the smallest parts are summed in one row without a name
);

-- What was counted, of each tenant, queue and kind that had any: at most a hundred rows for each minute, and one more,
-- without a tenant and with empty names, for the others together.
CREATE TABLE outbox.measures (
    at           timestamptz      NOT NULL,
    tenant_id    uuid,
    queue        text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    waiting      bigint           NOT NULL, -- pending, retrying or blocked, when it was counted
    running      bigint           NOT NULL,
    dead_letters bigint           NOT NULL, -- failed or dead
    enqueued     bigint           NOT NULL, -- these and those below: from since to at
    succeeded    bigint           NOT NULL,
    unsuccessful bigint           NOT NULL, -- closed as anything else
    failed       bigint           NOT NULL, -- attempts
    -- How many of those that closed had waited for so long from when they were due to when their last attempt began:
    -- less than 1 ms, 2 ms, 4 ms and so on; the 24th has all others. NULL is none.
    waits        bigint[]         NOT NULL
);

CREATE INDEX measures_at_idx ON outbox.measures (at);

-- The builds that workers run, for the marks of deploys: a row for each time that a build was there without having
-- been there at the count before.
CREATE TABLE outbox.builds (
    version text        NOT NULL,
    since   timestamptz NOT NULL, -- when the first of its workers that were there had started
    seen_at timestamptz NOT NULL,
    PRIMARY KEY (version, since)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);
