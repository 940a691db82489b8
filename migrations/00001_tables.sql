-- The tables of the schema outbox, with their types and constraints. Their indexes are in
-- 00002_indexes.sql, their triggers beside the functions that these call (functions/),
-- who may do what in functions/secure.sql. CONTRIBUTING.md says how the schema is changed.
--
-- A new schema: nothing of yours is locked or changed. It is there already: that takes a
-- privilege on the database, which roles that find it made for them need not have.

-- +goose Up
CREATE TYPE outbox.job_status AS ENUM (
    'created', 'pending', 'blocked', 'running', 'retrying', 'failed', 'dead',
    'succeeded', 'cancelled', 'expired', 'skipped', 'stale', 'dismissed'
);

-- Most rules of an open job are those of domains, because the server parses each
-- CHECK of a table anew for every statement that stores a row, which for a single
-- job cost more than everything else about storing it (docs/benchmarks.md). What
-- a domain demands it parses once a session.
CREATE DOMAIN outbox.name AS text COLLATE "C"
    CONSTRAINT jobs_names CHECK (octet_length(VALUE) BETWEEN 1 AND 128);

-- Bounds far from those of the types: one row that overflows would stop all claims.
CREATE DOMAIN outbox.counter AS integer
    CONSTRAINT jobs_counters CHECK (VALUE BETWEEN 0 AND 1000000000);

CREATE DOMAIN outbox.epoch AS bigint
    CONSTRAINT jobs_counters CHECK (VALUE BETWEEN 0 AND 1000000000000000000);

CREATE DOMAIN outbox.max_attempts AS integer
    CONSTRAINT jobs_counters CHECK (VALUE BETWEEN 1 AND 32767);

-- The time until 'infinity' has no length, and JSON has the years 1 to 9999 only.
CREATE DOMAIN outbox.moment AS timestamptz
    CONSTRAINT jobs_times CHECK (VALUE BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00');

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
    CONSTRAINT jobs_lease CHECK (
        CASE WHEN (VALUE).status = 'running'
            THEN num_nulls((VALUE).lease_owner, (VALUE).lease_expires_at, (VALUE).started_at) = 0 AND (VALUE).attempt > 0 AND (VALUE).epoch > 0
            -- What does not run is cancelled at once. So whatever takes a job out of running
            -- has to look at the request, or is refused.
            ELSE num_nonnulls((VALUE).lease_owner, (VALUE).lease_expires_at, (VALUE).cancel_requested_at) = 0
        END);

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

-- Open jobs only: it stays small, whatever the history grows to. A job that closes moves
-- to outbox.history in the statement that closes it.
CREATE TABLE outbox.jobs (
    -- UUIDv7, made by the producer: COPY and safe retries need it before the insert.
    id                 uuid                 NOT NULL PRIMARY KEY,
    tenant_id          uuid                 NOT NULL DEFAULT '00000000-0000-0000-0000-000000000001',
    -- The default is stable, not volatile: COPY keeps its multi-row inserts.
    run_at             timestamptz          NOT NULL DEFAULT statement_timestamp(),
    created_at         timestamptz          NOT NULL DEFAULT statement_timestamp(),
    epoch              bigint               NOT NULL DEFAULT 0, -- the fence: only ever rises
    status             outbox.job_status    NOT NULL DEFAULT 'pending',
    attempt            integer              NOT NULL DEFAULT 0, -- for people, not the fence: a snooze lowers it
    max_attempts       integer              NOT NULL DEFAULT 25,
    lost_leases        integer              NOT NULL DEFAULT 0,
    priority           smallint             NOT NULL DEFAULT 0, -- higher is more urgent
    -- Compared byte by byte: claims do not depend on the database's locale.
    queue              text COLLATE "C"     NOT NULL DEFAULT 'default',
    kind               text COLLATE "C"     NOT NULL,
    -- The bytes exactly as given: jsonb would refuse \u0000 and reorder keys.
    payload            bytea                NOT NULL,
    content_type       text                 NOT NULL DEFAULT 'application/json',
    key                text COLLATE "C",
    headers            jsonb,
    timeout            interval,
    -- The job's own waits between attempts: one after each, the last from then on. NULL leaves them to the kind.
    backoff            interval[],
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

    -- The rules of a keyed job (functions/claim_keyed.sql). Each job carries its own: a key needs no declaration.
    max_active         smallint,         -- NULL is 1
    slot               smallint,         -- which of the key's slots it runs in; says nothing while it does not run
    ordered            boolean,          -- true or NULL
    line_position      bigint,           -- in the key's line; given by the producer, or as its transaction commits
    on_death           text COLLATE "C", -- NULL has a dead head hold up the line
    park_after         interval,
    on_lapse           text COLLATE "C", -- NULL has the job retried

    -- A cast to a domain fails, or is not NULL: of these a deadline alone may be.
    CONSTRAINT jobs_values CHECK (
        num_nulls(queue::outbox.name, kind::outbox.name,
            attempt::outbox.counter, max_attempts::outbox.max_attempts, lost_leases::outbox.counter, epoch::outbox.epoch,
            run_at::outbox.moment, created_at::outbox.moment, deadline::outbox.moment,
            ROW(status, attempt, epoch, started_at, lease_expires_at, lease_owner, cancel_requested_at)::outbox.lease) <= 1),
    CONSTRAINT jobs_key_rules CHECK ( -- they mean nothing to a job without a key
        key IS NULL
        OR (ROW(max_active, slot, ordered, line_position, on_death, park_after, on_lapse)::outbox.key_rules) IS DISTINCT FROM NULL)
) WITH (
    -- Every job is updated once (claim) and then leaves. Beside what it was, the new
    -- version of a row asks for no other page, and its log has only what changed. Pages
    -- with room for all of them would take a backlog more disk than they save, and more
    -- time to fill (docs/benchmarks.md).
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05,
    autovacuum_vacuum_cost_delay = 0
);

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
    -- The statement may have waited, and a job never ends before it starts.
    finished_at        timestamptz       NOT NULL DEFAULT clock_timestamp(),
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

-- One row a failed attempt; short jobs that succeed never write here.
CREATE TABLE outbox.attempts (
    job_id        uuid        NOT NULL,
    epoch         bigint      NOT NULL,
    attempt       integer     NOT NULL,
    worker        text        NOT NULL,
    started_at    timestamptz NOT NULL,
    finished_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    error_code    text        NOT NULL,
    error_message text        NOT NULL,
    stack         text,
    tenant_id     uuid, -- the job's; a row without one is seen by no tenant
    PRIMARY KEY (job_id, epoch)
);

-- The first job of a (tenant, kind, key) is the only one, for as long as it is kept:
-- what trims a job frees its key in the same statement.
CREATE TABLE outbox.idempotency_keys (
    tenant_id  uuid        NOT NULL,
    kind       text        NOT NULL,
    key        text        NOT NULL,
    job_id     uuid        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- Whether the job was stored held: a repeat is answered like the first, also after its release. NULL is false.
    held       boolean,
    PRIMARY KEY (tenant_id, kind, key)
);

-- Queues that somebody has paused or limited once; others have no row.
--
-- Limits hold across all processes. Plain claims refuse a limited queue by the check that
-- refuses a paused one, and so pay nothing. A claim of a limited queue is a transaction of
-- several statements (dispatcher/limit.go): it locks the queue's row in queue_usage, looks
-- at what runs in a statement of its own, claims so much that both limits are kept, notes
-- what it has started, and commits.
CREATE TABLE outbox.queues (
    queue         text COLLATE "C" NOT NULL PRIMARY KEY,
    paused_at     timestamptz,
    updated_at    timestamptz NOT NULL DEFAULT now(),
    max_running   integer,  -- jobs at once; NULL is any number
    rate          integer,  -- starts in any span of rate_interval; NULL is any number
    rate_interval interval,
    limited_at    timestamptz, -- when a limit was set last
    limited       boolean NOT NULL GENERATED ALWAYS AS (max_running IS NOT NULL OR rate IS NOT NULL) STORED,

    -- A claim looks up each running job of a limited queue: hence the bound.
    CONSTRAINT queues_max_running CHECK (max_running BETWEEN 1 AND 10000),
    CONSTRAINT queues_rate CHECK (
        (rate IS NULL) = (rate_interval IS NULL)
        AND rate BETWEEN 1 AND 1000000
        AND rate_interval BETWEEN interval '10 milliseconds' AND interval '31 days')
);

-- How much of a queue's limits is used up: changed only by who holds the row's
-- lock. It is no part of outbox.queues, because that is read by every claim of
-- every queue, and this is written by every limited one.
CREATE TABLE outbox.queue_usage (
    queue        text COLLATE "C" NOT NULL PRIMARY KEY,
    -- Jobs that limited claims have started. Those that no longer run are found by looking at them.
    running      uuid[]           NOT NULL DEFAULT '{}',
    counted_at   timestamptz, -- when all running jobs of the queue were looked for last
    start_times  timestamptz[]    NOT NULL DEFAULT '{}', -- the latest start of each hundredth of the interval,
    start_counts integer[]        NOT NULL DEFAULT '{}'  -- and how many there were
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 100);

-- Keys (functions/claim_keyed.sql). A row exists for a key that a claim has looked at; the
-- reaper takes it away when no open job bears the key.
CREATE TABLE outbox.keys (
    tenant_id  uuid             NOT NULL,
    queue      text COLLATE "C" NOT NULL,
    key        text COLLATE "C" NOT NULL,
    made_at    timestamptz      NOT NULL DEFAULT statement_timestamp(),
    park_at    timestamptz, -- a dead head that holds up the line is waited for until then
    parked_at  timestamptz, -- no job of the key starts until somebody unblocks it
    parked_for uuid,        -- the job because of which
    PRIMARY KEY (tenant_id, queue, key)
);

-- The positions of ordered jobs in their lines; see functions/take_position.sql.
CREATE SEQUENCE outbox.commit_order;

-- What a transaction has taken the next job from, by a depth policy or outbox.cancel:
-- nobody settles that job, so nobody else would promote the one behind it before
-- the reaper's sweep. Each row lives until the commit of the transaction that makes
-- it, so nobody ever sees one.
CREATE TABLE outbox.freed_keys (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant_id uuid             NOT NULL,
    queue     text COLLATE "C" NOT NULL,
    key       text COLLATE "C" NOT NULL
);

-- What a consumer has already handled: inbox.Once writes here in the consumer's
-- own transaction.
CREATE TABLE outbox.inbox (
    consumer    text        NOT NULL,
    message_id  text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

-- What running jobs report: progress, checkpoints, logs and steps. A job that reports
-- nothing has no row in these three. Whatever is written here names (job_id, epoch) in the
-- statement that writes it, with the job's row locked: see queries/record.sql.

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

-- Jobs of a kind with a hook leave a job for the hook behind when they become dead letters
-- (functions/store_death_hook.sql).
--
-- Dispatchers register the hooks of their handlers when they start, because the
-- reaper knows no handlers. A row stays until somebody deletes it: a process that
-- does not know of a hook must not take it away from those that do.
CREATE TABLE outbox.death_hooks (
    kind          text COLLATE "C" NOT NULL PRIMARY KEY,
    hook_kind     text COLLATE "C" NOT NULL,
    registered_by text             NOT NULL,
    registered_at timestamptz      NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT death_hooks_names CHECK (octet_length(kind) BETWEEN 1 AND 128 AND octet_length(hook_kind) BETWEEN 1 AND 128)
);

-- Schedules: jobs that are enqueued when the clock says so. What outbox.Options say of a
-- job, schedules say of theirs.
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
    -- Ticks before it do not count: the schedule was declared, changed or resumed then.
    since        timestamptz      NOT NULL DEFAULT statement_timestamp(),
    next_at      timestamptz      NOT NULL,
    last_at      timestamptz,                         -- the latest tick that enqueued a job
    paused_at    timestamptz,
    created_at   timestamptz      NOT NULL DEFAULT statement_timestamp(),
    updated_at   timestamptz      NOT NULL DEFAULT statement_timestamp(), -- of the latest declaration with a change
    deadline     interval, -- after the tick
    hold         boolean,  -- NULL for false, as in jobs
    max_active   smallint,
    ordered      boolean,
    on_death     text COLLATE "C",
    park_after   interval,
    on_lapse     text COLLATE "C",

    PRIMARY KEY (tenant_id, name),
    CONSTRAINT schedules_cron_or_interval CHECK (
        (expression IS NOT NULL) = (time_zone IS NOT NULL) AND (expression IS NOT NULL) = (every IS NULL)),
    CONSTRAINT schedules_missed CHECK (missed IN ('skip', 'once', 'all') AND missed_limit BETWEEN 1 AND 1000),
    CONSTRAINT schedules_next_at_is_a_time CHECK (
        next_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND since BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'),
    CONSTRAINT schedules_names CHECK (
        octet_length(name) BETWEEN 1 AND 128 AND octet_length(queue) BETWEEN 1 AND 128 AND octet_length(kind) BETWEEN 1 AND 128),
    CONSTRAINT schedules_options CHECK (
        (deadline IS NULL OR deadline > interval '0')
        AND (max_active IS NULL OR max_active BETWEEN 2 AND 1000)
        AND (on_death IS NULL OR on_death IN ('skip', 'park'))
        AND (on_lapse IS NULL OR on_lapse IN ('fail-stale', 'block')))
);

-- Bearer tokens of the API. Only hashes are stored: a reader of this table, or
-- of a backup of it, can call nothing.
CREATE TABLE outbox.tokens (
    id           text COLLATE "C" NOT NULL PRIMARY KEY, -- the part of the token that may be shown
    secret_hash  bytea            NOT NULL,
    name         text             NOT NULL,
    tenant_id    uuid             NOT NULL,
    all_tenants  boolean          NOT NULL, -- sees and acts on the jobs of every tenant, not of tenant_id alone
    capabilities text[]           NOT NULL,
    created_by   text             NOT NULL,
    created_at   timestamptz      NOT NULL DEFAULT statement_timestamp(),
    expires_at   timestamptz,
    last_used_at timestamptz, -- to the minute
    revoked_at   timestamptz,

    CONSTRAINT tokens_expire_at_a_time CHECK (isfinite(expires_at)),
    CONSTRAINT tokens_hash_is_sha256 CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT tokens_names CHECK (octet_length(name) BETWEEN 1 AND 128 AND octet_length(created_by) BETWEEN 1 AND 256),
    CONSTRAINT tokens_may_do_something CHECK (cardinality(capabilities) BETWEEN 1 AND 64 AND array_position(capabilities, NULL) IS NULL)
);

-- Which dispatchers there are: each writes its row when it starts and every
-- minute, and deletes it when it stops. For people only: nothing in the engine
-- depends on it, and a lease never does.
CREATE TABLE outbox.workers (
    worker      text COLLATE "C"   NOT NULL PRIMARY KEY, -- as in jobs.lease_owner
    version     text               NOT NULL,
    queues      text[] COLLATE "C" NOT NULL,
    concurrency integer[]          NOT NULL, -- of each queue
    kinds       text[] COLLATE "C" NOT NULL, -- with a handler
    hearing     boolean            NOT NULL, -- whether wake-ups can be relied on
    started_at  timestamptz        NOT NULL DEFAULT statement_timestamp(),
    seen_at     timestamptz        NOT NULL DEFAULT statement_timestamp()
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);

-- When reapers last did a chore to its end. For people: doctor finds what is not done for days.
CREATE TABLE outbox.chores (
    chore   text COLLATE "C" NOT NULL PRIMARY KEY, -- trim
    done_at timestamptz      NOT NULL
);

-- The audit: a row for each act of an operator, written by the statement or the
-- transaction that acts, so that there is no act without its row and no row without its
-- act.
CREATE TABLE outbox.audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor      text        NOT NULL, -- a person, a token's name, or unknown
    act        text        NOT NULL, -- noun.verb: job.retry, queue.pause
    tenant_id  uuid,                 -- whose job or thing it is; NULL is the whole installation's
    job_id     uuid,
    queue      text COLLATE "C",     -- of the job, or the queue itself
    target     text,                 -- what else it was done to: a key, a schedule, a token
    before     jsonb,                -- what the act changed, as it was
    after      jsonb,                -- and as it became
    reason     text,
    request_id text,

    CONSTRAINT audit_names CHECK (octet_length(actor) BETWEEN 1 AND 256 AND octet_length(act) BETWEEN 1 AND 128)
);

-- A chain over outbox.audit, by which a row is found that was changed, removed, slipped
-- in or moved: each link is the SHA-256 of the link before it and a row. How to check
-- it is in docs/operations.md, why it is so in docs/adr/0012-audit-chain.md.
--
-- The first row of the chain is its anchor: the link that the rest hangs on, whose own
-- row is not there, because it was trimmed, or because there never was one (seq 0).
-- Nothing can be deleted from the audit, not even by its owner and by mistake, unless its
-- link is. Only trim_audit deletes links.
CREATE TABLE outbox.audit_chain (
    seq      bigint PRIMARY KEY, -- without gaps
    audit_id bigint UNIQUE REFERENCES outbox.audit (id), -- NULL for the anchor
    hash     bytea  NOT NULL,

    CONSTRAINT audit_chain_hash CHECK (octet_length(hash) = 32)
);

INSERT INTO outbox.audit_chain (seq, hash) VALUES (0, decode(repeat('00', 32), 'hex'));

-- What this schema was made of: each migration, function and view with the SHA-256 of the
-- text that made it (migrations/state.go).
CREATE TABLE outbox.schema_files (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    checksum   bytea            NOT NULL,
    revision   integer          NOT NULL, -- of the set of functions that it is in; 0 for a migration
    applied_at timestamptz      NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT schema_files_checksum CHECK (octet_length(checksum) = 32)
);
