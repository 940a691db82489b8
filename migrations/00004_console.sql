-- What the console asks, and nothing else did before.

-- +goose Up
-- ListChildren reads the follow-ups of a job; others are not in it. SHARE on the jobs while they are read, half a
-- second for a million.
CREATE INDEX jobs_parent_idx ON outbox.jobs (parent_id, id)
    WHERE parent_id IS NOT NULL;

-- The same for those that have closed. SHARE on the history while it is read, half a second for a million.
CREATE INDEX history_parent_idx ON outbox.history (parent_id, id)
    WHERE parent_id IS NOT NULL;

-- ExplainQueue looks for the act that paused a queue. Acts on jobs, which are many, are not in it. SHARE on the
-- audit while it is read.
CREATE INDEX audit_queue_idx ON outbox.audit (queue, id)
    WHERE job_id IS NULL AND queue IS NOT NULL;

-- One row an act on many dead letters that outlives the request that began it. Whatever process runs operations
-- takes its next step: a transaction that holds the row, acts on a page of jobs and says so here. So a process that
-- dies leaves the row as it was before its step, and another one goes on. A new table: nothing is locked.
CREATE TABLE outbox.operations (
    id          uuid        NOT NULL PRIMARY KEY,
    tenant_id   uuid,                 -- whose dead letters; NULL: of all tenants
    act         text        NOT NULL,
    filter      jsonb       NOT NULL, -- which ones (operator.DeadLetterFilter): no more than was previewed
    per_second  float8      NOT NULL, -- 0: without a limit
    matched     bigint      NOT NULL, -- at the beginning
    done        bigint      NOT NULL DEFAULT 0,
    passed      bigint      NOT NULL DEFAULT 0, -- left alone
    position    uuid,                 -- of the last job that was looked at
    next_at     timestamptz NOT NULL DEFAULT statement_timestamp(), -- when its next step may begin
    actor       text        NOT NULL,
    reason      text        NOT NULL,
    request_id  text        NOT NULL, -- that of its entries in the audit
    created_at  timestamptz NOT NULL DEFAULT statement_timestamp(),
    stopped_at  timestamptz, -- by an operator, until it is resumed
    finished_at timestamptz,
    failure     text,        -- of the latest step, if it failed: it is tried again

    CONSTRAINT operations_act CHECK (act IN ('replay', 'dismiss'))
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);

-- TakeOperation: those whose next step is due.
CREATE INDEX operations_open_idx ON outbox.operations (next_at)
    WHERE finished_at IS NULL AND stopped_at IS NULL;
