-- Charts of days: the minutes of outbox.measures summed by the hour, so that two weeks are read as quickly as a few
-- hours.
--
-- Reapers fill them, an hour at a time, after the minute that ends it (queries/measure.sql).
--
-- Locks: nothing: new tables
-- A million rows: no row is read or written

-- +goose Up
CREATE TABLE outbox.measured_hours (
    at       timestamptz NOT NULL PRIMARY KEY, -- the end of the hour
    seconds  float8      NOT NULL,             -- how much of it was measured
    complete boolean     NOT NULL              -- as in outbox.measured, for all of its minutes
);

-- As outbox.measures, but that what is open is the mean of the minutes that were measured: means can be added up over
-- queues and kinds, maxima cannot.
CREATE TABLE outbox.measures_hours (
    at           timestamptz      NOT NULL,
    tenant_id    uuid,
    queue        text COLLATE "C" NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    waiting      bigint           NOT NULL,
    running      bigint           NOT NULL,
    dead_letters bigint           NOT NULL,
    enqueued     bigint           NOT NULL,
    succeeded    bigint           NOT NULL,
    unsuccessful bigint           NOT NULL,
    failed       bigint           NOT NULL,
    waits        bigint[]         NOT NULL
);

CREATE INDEX measures_hours_at_idx ON outbox.measures_hours (at);
