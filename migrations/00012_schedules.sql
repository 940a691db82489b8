-- Schedules: jobs that are enqueued when the clock says so. A new table: nothing
-- of yours is locked or changed.

-- +goose Up
CREATE TABLE outbox.schedules (
    tenant_id    uuid             NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    name         text COLLATE "C" NOT NULL,
    generation   bigint           NOT NULL DEFAULT 1, -- how many declarations it has had that changed something
    expression   text,                                -- cron, with time_zone; or
    time_zone    text,
    every        interval,
    missed       text             NOT NULL DEFAULT 'once',
    missed_limit integer          NOT NULL DEFAULT 1, -- of 'all'
    kind         text COLLATE "C" NOT NULL,
    queue        text COLLATE "C" NOT NULL DEFAULT 'default',
    priority     smallint         NOT NULL DEFAULT 0,
    max_attempts integer          NOT NULL DEFAULT 25,
    timeout      interval,
    backoff      interval[],
    key          text,
    payload      bytea            NOT NULL,
    content_type text             NOT NULL DEFAULT 'application/json',
    headers      jsonb,
    since        timestamptz      NOT NULL DEFAULT statement_timestamp(), -- ticks before it are none: it was declared, changed or resumed then
    next_at      timestamptz      NOT NULL,
    last_at      timestamptz,                         -- the latest tick that enqueued a job
    paused_at    timestamptz,
    created_at   timestamptz      NOT NULL DEFAULT statement_timestamp(),
    updated_at   timestamptz      NOT NULL DEFAULT statement_timestamp(), -- of the latest declaration that changed something

    PRIMARY KEY (tenant_id, name),
    CONSTRAINT schedules_cron_or_interval CHECK (
        (expression IS NOT NULL) = (time_zone IS NOT NULL) AND (expression IS NOT NULL) = (every IS NULL)),
    CONSTRAINT schedules_missed CHECK (missed IN ('skip', 'once', 'all') AND missed_limit BETWEEN 1 AND 1000),
    CONSTRAINT schedules_next_at_is_a_time CHECK (isfinite(next_at) AND isfinite(since)),
    CONSTRAINT schedules_names CHECK (
        octet_length(name) BETWEEN 1 AND 128 AND octet_length(queue) BETWEEN 1 AND 128 AND octet_length(kind) BETWEEN 1 AND 128)
);

CREATE INDEX schedules_next_at_idx ON outbox.schedules (next_at)
    WHERE paused_at IS NULL;

-- +goose Down
DROP TABLE outbox.schedules;
