-- What running jobs report: progress, checkpoints, logs and steps. New tables,
-- written only by jobs that report something: nothing that exists is locked or
-- changed, and a job that reports nothing has no row here.
--
-- Whatever is written here names (job_id, epoch) in the statement that writes it,
-- with the job's row locked: see queries/record.sql.

-- +goose Up
-- One row a job that has reported anything: it is also what the reaper finds the
-- job's logs and steps by. It is updated several times a second while the job
-- runs, so no index is on what changes and pages have room: updates stay on the page.
CREATE TABLE outbox.progress (
    job_id           uuid        NOT NULL PRIMARY KEY,
    created_at       timestamptz NOT NULL DEFAULT statement_timestamp(),
    epoch            bigint      NOT NULL, -- of the attempt that wrote last
    revision         bigint      NOT NULL, -- of that attempt's report: a statement that arrives late changes nothing
    current          bigint,               -- current to reported_at: NULL until progress is reported
    total            bigint,
    reported_at      timestamptz,
    message          text,
    checkpoint       bytea,
    checkpoint_epoch bigint,
    checkpointed_at  timestamptz,

    CONSTRAINT progress_amounts CHECK (current >= 0 AND total >= 0),
    CONSTRAINT progress_sizes CHECK (octet_length(message) <= 600 AND octet_length(checkpoint) <= 262144)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000
);

CREATE INDEX progress_created_at_idx ON outbox.progress (created_at, job_id);

-- The last 200 lines of a job: a ring, so that no job can have more. A line is
-- known by (epoch, line), its number within its attempt.
CREATE TABLE outbox.job_logs (
    job_id    uuid        NOT NULL,
    slot      smallint    NOT NULL,
    epoch     bigint      NOT NULL,
    line      bigint      NOT NULL,
    logged_at timestamptz NOT NULL,
    level     text        NOT NULL,
    message   text        NOT NULL,
    PRIMARY KEY (job_id, slot),

    CONSTRAINT job_logs_ring CHECK (slot BETWEEN 0 AND 199),
    CONSTRAINT job_logs_sizes CHECK (octet_length(level) <= 32 AND octet_length(message) <= 1100)
) WITH (fillfactor = 70);

-- What a step returned; later attempts get it instead of running the step.
CREATE TABLE outbox.job_steps (
    job_id      uuid            NOT NULL,
    name        text COLLATE "C" NOT NULL,
    epoch       bigint          NOT NULL, -- of the attempt that ran it
    finished_at timestamptz     NOT NULL DEFAULT statement_timestamp(),
    took        interval        NOT NULL, -- by the worker's clock
    result      bytea           NOT NULL, -- JSON
    PRIMARY KEY (job_id, name),

    CONSTRAINT job_steps_sizes CHECK (octet_length(name) BETWEEN 1 AND 128 AND octet_length(result) <= 262144)
);

-- +goose Down
DROP TABLE outbox.job_steps;
DROP TABLE outbox.job_logs;
DROP TABLE outbox.progress;
