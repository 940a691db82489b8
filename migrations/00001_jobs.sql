-- The tables of the outbox. A new schema: nothing of yours is locked or changed.
--
-- jobs holds open jobs only and stays small, whatever the history grows to. A
-- job that closes moves to outbox.history in the statement that closes it.

-- +goose Up
CREATE SCHEMA IF NOT EXISTS outbox;

CREATE TYPE outbox.job_status AS ENUM (
    'created', 'pending', 'blocked', 'running', 'retrying', 'failed', 'dead',
    'succeeded', 'cancelled', 'expired', 'skipped', 'stale', 'dismissed'
);

-- Most rules of an open job are those of domains, because the server parses each
-- CHECK of a table anew for every statement that stores a row, which for a single
-- job cost more than everything else about storing it (docs/benchmarks.md). What
-- a domain demands it parses once a session. Plain jobs meet no row that has to be
-- put together first.
CREATE DOMAIN outbox.name AS text COLLATE "C"
    CONSTRAINT jobs_names CHECK (octet_length(VALUE) BETWEEN 1 AND 128);

-- Bounds far from those of the types: one row that overflows would stop all claims.
CREATE DOMAIN outbox.counter AS integer
    CONSTRAINT jobs_counters CHECK (VALUE BETWEEN 0 AND 1000000000);
CREATE DOMAIN outbox.epoch AS bigint
    CONSTRAINT jobs_counters CHECK (VALUE BETWEEN 0 AND 1000000000000000000);
CREATE DOMAIN outbox.max_attempts AS integer
    CONSTRAINT jobs_counters CHECK (VALUE BETWEEN 1 AND 32767);

CREATE TYPE outbox.lease_facts AS (
    status              outbox.job_status,
    attempt             integer,
    epoch               bigint,
    started_at          timestamptz,
    lease_expires_at    timestamptz,
    lease_owner         text,
    cancel_requested_at timestamptz
);

CREATE DOMAIN outbox.lease AS outbox.lease_facts
    CONSTRAINT jobs_open CHECK ((VALUE).status < 'succeeded') -- closed jobs live in outbox.history
    CONSTRAINT jobs_running_has_lease CHECK (
        ((VALUE).status = 'running') = ((VALUE).lease_expires_at IS NOT NULL)
        AND ((VALUE).status = 'running') = ((VALUE).lease_owner IS NOT NULL))
    CONSTRAINT jobs_running_was_claimed CHECK (
        (VALUE).status <> 'running' OR ((VALUE).attempt > 0 AND (VALUE).epoch > 0 AND (VALUE).started_at IS NOT NULL))
    -- What does not run is cancelled at once. So whatever takes a job out of running
    -- has to look at the request, or is refused.
    CONSTRAINT jobs_cancel_requested_while_running CHECK ((VALUE).cancel_requested_at IS NULL OR (VALUE).status = 'running');

CREATE TYPE outbox.key_facts AS (
    max_active    smallint,
    slot          smallint,
    ordered       boolean,
    line_position bigint,
    on_death      text,
    park_after    interval,
    on_lapse      text
);

CREATE DOMAIN outbox.key_rules AS outbox.key_facts
    CONSTRAINT jobs_key_rules CHECK (
        coalesce((VALUE).max_active, 1) BETWEEN 1 AND 1000
        AND ((VALUE).slot IS NULL OR (VALUE).slot BETWEEN 0 AND coalesce((VALUE).max_active, 1) - 1)
        AND ((VALUE).ordered IS NULL OR ((VALUE).ordered AND (VALUE).max_active IS NULL))
        AND ((VALUE).ordered IS NOT NULL OR num_nonnulls((VALUE).line_position, (VALUE).on_death, (VALUE).park_after) = 0)
        AND ((VALUE).on_death IS NULL OR (VALUE).on_death IN ('skip', 'park'))
        AND ((VALUE).park_after IS NULL OR ((VALUE).on_death = 'park') IS TRUE)
        AND ((VALUE).on_lapse IS NULL OR (VALUE).on_lapse IN ('fail-stale', 'block')));

CREATE TABLE outbox.jobs (
    id                 uuid                 NOT NULL PRIMARY KEY, -- v7, made by the producer: COPY and safe retries need it before the insert
    tenant_id          uuid                 NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    run_at             timestamptz          NOT NULL DEFAULT statement_timestamp(), -- stable, not volatile: COPY keeps its multi-row inserts
    created_at         timestamptz          NOT NULL DEFAULT statement_timestamp(),
    epoch              bigint               NOT NULL DEFAULT 0, -- the fence: only ever rises
    status             outbox.job_status    NOT NULL DEFAULT 'pending',
    attempt            integer              NOT NULL DEFAULT 0, -- for people, not the fence: a snooze lowers it
    max_attempts       integer              NOT NULL DEFAULT 25,
    lost_leases        integer              NOT NULL DEFAULT 0,
    priority           smallint             NOT NULL DEFAULT 0, -- higher is more urgent
    queue              text COLLATE "C"     NOT NULL DEFAULT 'default', -- compared byte by byte: claims do not depend on the database's locale
    kind               text COLLATE "C"     NOT NULL,
    payload            bytea                NOT NULL, -- bytes exactly as given: jsonb would refuse \u0000 and reorder keys
    content_type       text                 NOT NULL DEFAULT 'application/json',
    key                text COLLATE "C",
    headers            jsonb,
    timeout            interval,
    backoff            interval[], -- the job's own waits between attempts: one after each, the last from then on. NULL leaves them to the kind
    lease_owner        text,
    lease_expires_at   timestamptz,
    started_at         timestamptz,
    last_error_code    text,
    last_error_message text,
    deadline           timestamptz, -- from this instant on it may not start, run or succeed any more
    cancel_requested_at timestamptz, -- of a running job: its handler has been asked to stop
    unavailable_since  timestamptz, -- when what it depends on was found away first, if that was its latest outcome
    failed_at          timestamptz, -- when it became a dead letter, while it is one
    error_fingerprint  text COLLATE "C", -- of a dead letter: those that failed alike have the same
    watched            boolean, -- somebody waits for it: its settlement is announced. NULL otherwise
    parent_id          uuid,    -- of a follow-up: the job whose settlement stored it

    -- The rules of a keyed job (00011_keys.sql). Each job carries its own: a key needs no declaration.
    max_active         smallint,         -- NULL is 1
    slot               smallint,         -- which of the key's slots it runs in; says nothing while it does not run
    ordered            boolean,          -- true or NULL
    line_position      bigint,           -- in the key's line; given by the producer, or as its transaction commits
    on_death           text COLLATE "C", -- NULL has a dead head hold up the line
    park_after         interval,
    on_lapse           text COLLATE "C", -- NULL has the job retried

    CONSTRAINT jobs_names CHECK (queue::outbox.name IS NOT NULL AND kind::outbox.name IS NOT NULL),
    CONSTRAINT jobs_counters CHECK (
        attempt::outbox.counter IS NOT NULL AND max_attempts::outbox.max_attempts IS NOT NULL
        AND lost_leases::outbox.counter IS NOT NULL AND epoch::outbox.epoch IS NOT NULL),
    CONSTRAINT jobs_run_at_is_a_time CHECK (isfinite(run_at) AND isfinite(created_at)), -- the time until 'infinity' has no length
    CONSTRAINT jobs_deadline_is_a_time CHECK (isfinite(deadline)),
    CONSTRAINT jobs_lease CHECK ( -- the rows of an enqueue and of a claim are seen to be right without making a composite of each
        (status = 'pending' AND lease_owner IS NULL AND lease_expires_at IS NULL AND cancel_requested_at IS NULL)
        OR (status = 'running' AND lease_owner IS NOT NULL AND lease_expires_at IS NOT NULL AND started_at IS NOT NULL AND attempt > 0 AND epoch > 0)
        OR (ROW(status, attempt, epoch, started_at, lease_expires_at, lease_owner, cancel_requested_at)::outbox.lease) IS DISTINCT FROM NULL),
    CONSTRAINT jobs_key_rules CHECK ( -- they mean nothing to a job without a key
        key IS NULL
        OR (ROW(max_active, slot, ordered, line_position, on_death, park_after, on_lapse)::outbox.key_rules) IS DISTINCT FROM NULL)
) WITH (
    -- Every job is updated once (claim) and then leaves. Beside what it was, the new
    -- version of a row asks for no other page, and its log has only what changed. Pages
    -- with room for all of them would take a backlog more disk than they save, and more
    -- time to fill (docs/benchmarks.md).
    fillfactor = 60,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

-- Claims walk this index, one priority at a time, from a remembered position.
-- No two entries are equal, so looking for duplicates on full pages is in vain.
-- Jobs with a key have an index and a claim of their own (00011_keys.sql).
CREATE INDEX jobs_due_idx ON outbox.jobs (queue, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE status IN ('pending', 'retrying') AND key IS NULL;

-- The reaper looks for lapsed leases from a remembered position. An extension
-- therefore writes an index entry, but only jobs that outlive a third of the
-- lease are extended at all; with an index on id alone, a held snapshot would
-- make each pass walk every job that was claimed since.
CREATE INDEX jobs_lease_idx ON outbox.jobs (lease_expires_at)
    WHERE status = 'running';

-- The reaper looks for jobs whose deadline has come; dead letters wait for a
-- person, not for a time. Jobs without a deadline are not in it.
CREATE INDEX jobs_deadline_idx ON outbox.jobs (deadline)
    WHERE deadline IS NOT NULL AND status NOT IN ('failed', 'dead');

CREATE INDEX jobs_dead_letter_idx ON outbox.jobs (id)
    WHERE status IN ('failed', 'dead');

-- Only dead letters have a fingerprint. To ask for it is cheaper, for all other
-- jobs, than to compare the status.
CREATE INDEX jobs_error_fingerprint_idx ON outbox.jobs (error_fingerprint, id)
    WHERE error_fingerprint IS NOT NULL;
-- A tenant's jobs, newest first, for lists. Whoever has but the root tenant pays
-- nothing for it.
CREATE INDEX jobs_tenant_idx ON outbox.jobs (tenant_id, id)
    WHERE tenant_id <> '00000000-0000-0000-0000-000000000001';

-- Extensions of leases whose jobs' rows were locked at the time, by the handler's own
-- transaction most likely: the lease of (job_id, epoch) lasts until the later of
-- expires_at here and jobs.lease_expires_at. Few jobs ever have a row.
CREATE TABLE outbox.lease_extensions (
    job_id     uuid        NOT NULL,
    epoch      bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, epoch)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);

-- Closed jobs, partitioned by the UTC day of finished_at. The reaper creates
-- partitions ahead and drops old ones whole.
CREATE TABLE outbox.history (
    id                 uuid              NOT NULL,
    tenant_id          uuid              NOT NULL,
    run_at             timestamptz       NOT NULL,
    created_at         timestamptz       NOT NULL,
    started_at         timestamptz,
    finished_at        timestamptz       NOT NULL DEFAULT statement_timestamp(),
    epoch              bigint            NOT NULL,
    status             outbox.job_status NOT NULL,
    closed_from        outbox.job_status NOT NULL, -- the status that it left: the last move is checked like every other
    attempt            integer           NOT NULL,
    max_attempts       integer           NOT NULL,
    lost_leases        integer           NOT NULL,
    priority           smallint          NOT NULL,
    queue              text COLLATE "C"  NOT NULL,
    kind               text COLLATE "C"  NOT NULL,
    payload            bytea             NOT NULL,
    content_type       text              NOT NULL,
    key                text,
    headers            jsonb,
    timeout            interval,
    backoff            interval[],
    worker             text,
    result             bytea,
    last_error_code    text,
    last_error_message text,
    deadline           timestamptz,
    cancel_requested_at timestamptz, -- a job may succeed all the same
    parent_id          uuid,

    CONSTRAINT history_legal_move CHECK (
        (closed_from = 'running'  AND status IN ('succeeded', 'cancelled', 'expired', 'stale'))
        OR (closed_from = 'created'  AND status IN ('cancelled', 'expired'))
        OR (closed_from = 'pending'  AND status IN ('cancelled', 'expired', 'skipped'))
        OR (closed_from = 'blocked'  AND status IN ('cancelled', 'expired', 'skipped'))
        OR (closed_from = 'retrying' AND status IN ('cancelled', 'expired', 'skipped'))
        OR (closed_from = 'failed'   AND status = 'dismissed')
        OR (closed_from = 'dead'     AND status = 'dismissed'))
) PARTITION BY RANGE (finished_at);

CREATE INDEX history_id_idx ON outbox.history (id);

CREATE INDEX history_tenant_idx ON outbox.history (tenant_id, id)
    WHERE tenant_id <> '00000000-0000-0000-0000-000000000001';

-- One row a failed attempt; short jobs that succeed never write here.
CREATE TABLE outbox.attempts (
    job_id        uuid        NOT NULL,
    epoch         bigint      NOT NULL,
    attempt       integer     NOT NULL,
    worker        text        NOT NULL,
    started_at    timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL DEFAULT statement_timestamp(),
    error_code    text        NOT NULL,
    error_message text        NOT NULL,
    stack         text,
    tenant_id     uuid, -- the job's; a row without one is seen by no tenant
    PRIMARY KEY (job_id, epoch)
);

CREATE INDEX attempts_finished_at_idx ON outbox.attempts (finished_at);

-- The first job of a (tenant, kind, key) is the only one, for as long as it is kept:
-- what trims a job frees its key in the same statement.
CREATE TABLE outbox.idempotency_keys (
    tenant_id  uuid        NOT NULL,
    kind       text        NOT NULL,
    key        text        NOT NULL,
    job_id     uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (tenant_id, kind, key)
);

CREATE INDEX idempotency_keys_job_id_idx ON outbox.idempotency_keys (job_id);

-- A row exists only for a queue that somebody paused once.
CREATE TABLE outbox.queues (
    queue      text COLLATE "C" NOT NULL PRIMARY KEY,
    paused_at  timestamptz,
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- +goose Down
DROP TABLE outbox.queues;
DROP TABLE outbox.idempotency_keys;
DROP TABLE outbox.attempts;
DROP TABLE outbox.history;
DROP TABLE outbox.lease_extensions;
DROP TABLE outbox.jobs;
DROP DOMAIN outbox.key_rules;
DROP TYPE outbox.key_facts;
DROP DOMAIN outbox.lease;
DROP TYPE outbox.lease_facts;
DROP DOMAIN outbox.name, outbox.counter, outbox.epoch, outbox.max_attempts;
DROP TYPE outbox.job_status;
