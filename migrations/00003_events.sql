-- Events: a log of what services have published, and how far each sink has read it. The
-- relay (package relay) says how a sink keeps the order of a key; functions/publish.sql and
-- functions/secure.sql say who may write what.
--
-- New tables and a sequence, and a column of jobs and history that is NULL in every row:
-- ACCESS EXCLUSIVE on both for a change of the catalog, and no row is read or written.

-- +goose Up
-- Positions come from one sequence without a cache: two transactions that hold the lock of
-- one aggregate, one after the other, get them in that order.
CREATE SEQUENCE outbox.events_position_seq AS bigint CACHE 1;

-- The log. A row is never changed, and goes with its day.
CREATE TABLE outbox.events (
    -- A transaction has its number before it takes a position. So every transaction that
    -- may still fill a gap below a position that somebody can see has a number below those
    -- that are given out from then on; and when all of them have ended, the gap is one for
    -- good. A bare nextval might be overtaken between the two.
    position     bigint           NOT NULL DEFAULT CASE WHEN pg_current_xact_id() IS NOT NULL THEN nextval('outbox.events_position_seq') END,
    at           timestamptz      NOT NULL DEFAULT statement_timestamp(),
    id           uuid             NOT NULL,
    tenant_id    uuid             NOT NULL,
    topic        text COLLATE "C" NOT NULL,
    key          text COLLATE "C", -- NULL: in no order
    content_type text             NOT NULL,
    payload      bytea            NOT NULL,
    headers      jsonb,

    -- What package outbox and outbox.publish say in words. One CHECK: the server parses each anew for every statement.
    CONSTRAINT events_values CHECK (
        octet_length(topic) BETWEEN 1 AND 128 AND octet_length(key) BETWEEN 1 AND 512 AND octet_length(content_type) BETWEEN 1 AND 128
        AND octet_length(payload) <= 4194304 AND jsonb_typeof(headers) = 'object')
) PARTITION BY RANGE (at);

ALTER SEQUENCE outbox.events_position_seq OWNED BY outbox.events.position;

-- One row a sink: a broker that events are published to.
CREATE TABLE outbox.sinks (
    sink             text COLLATE "C" NOT NULL PRIMARY KEY,
    -- Every event up to top is published, but for those at the holes: positions that were
    -- given out, and at which no event has been seen yet.
    top              bigint           NOT NULL DEFAULT 0,
    top_id           uuid, -- of the event at top, by which it is known again after a failover; NULL: none, or not known
    holes            int8multirange   NOT NULL DEFAULT '{}',
    -- Where positions come from: system and timeline. After a failover that lost commits
    -- they are given out a second time.
    timeline         text COLLATE "C" NOT NULL DEFAULT '',
    -- One process publishes, fenced by the epoch like a job's lease.
    owner            text COLLATE "C",
    epoch            bigint           NOT NULL DEFAULT 0,
    lease_expires_at timestamptz,
    published        bigint           NOT NULL DEFAULT 0,
    moved_at         timestamptz, -- when top moved last
    away_since       timestamptz, -- since when the broker takes nothing
    away_code        text COLLATE "C",
    away_message     text,
    paused_at        timestamptz, -- by an operator
    remembers        interval, -- for how long the broker drops what repeats an id, as far as it is known
    created_at       timestamptz      NOT NULL DEFAULT statement_timestamp()
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 100);

-- How many events of its life a job has in the log (functions/stream_job.sql). NULL is a job
-- that is not streamed, which pays no byte for it; producers store 1.
ALTER TABLE outbox.jobs ADD COLUMN streamed integer;
ALTER TABLE outbox.history ADD COLUMN streamed integer;

-- It has one parameter more.
DROP FUNCTION IF EXISTS outbox.enqueue(text, jsonb, text, integer, timestamptz, interval, integer, interval, text, text, jsonb, uuid,
    boolean, timestamptz, boolean, integer, boolean, bigint, text, interval, text, integer, text, boolean, interval[]);

-- One row a replay: events that a sink publishes again, beside what is new. The sink's owner
-- works it off, fenced by the sink's epoch.
CREATE TABLE outbox.replays (
    id            uuid             NOT NULL PRIMARY KEY,
    sink          text COLLATE "C" NOT NULL REFERENCES outbox.sinks ON DELETE CASCADE,
    tenant_id     uuid, -- whose events; NULL: of all tenants
    topics        text[] COLLATE "C" NOT NULL, -- patterns as in routes; empty: any
    key           text COLLATE "C" NOT NULL, -- '': any
    since         timestamptz      NOT NULL, -- when they were stored
    until         timestamptz      NOT NULL,
    position      bigint           NOT NULL, -- everything up to here is done
    last_position bigint           NOT NULL,
    per_second    float8           NOT NULL, -- 0: without a limit
    again         boolean          NOT NULL, -- under new ids
    events        bigint           NOT NULL, -- that were meant at the beginning
    published     bigint           NOT NULL DEFAULT 0,
    refused       bigint           NOT NULL DEFAULT 0,
    repeated      bigint           NOT NULL DEFAULT 0, -- of those published, dropped by the broker as repeats
    actor         text             NOT NULL,
    reason        text             NOT NULL,
    created_at    timestamptz      NOT NULL DEFAULT statement_timestamp(),
    finished_at   timestamptz,
    stopped       boolean          NOT NULL DEFAULT false, -- by an operator
    failure       text -- what it waits for
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);

-- Messages of a sink that are jobs now: one that it has refused, and those behind it of the
-- same key. A row is stored with its job, and goes once the job is closed.
CREATE TABLE outbox.held_messages (
    sink      text COLLATE "C" NOT NULL,
    job_id    uuid             NOT NULL,
    tenant_id uuid             NOT NULL,
    key       text COLLATE "C", -- NULL: in no order
    position  bigint           NOT NULL, -- in the log
    PRIMARY KEY (sink, job_id)
) WITH (autovacuum_vacuum_threshold = 1000);

-- Their names were those of the history alone: ensure_days and drop_day stand for them.
DROP FUNCTION IF EXISTS outbox.ensure_history(integer), outbox.drop_history(regclass), outbox.drop_day(regclass);

-- RelayRead: the next events behind a position, and those at holes.
CREATE INDEX events_position_idx ON outbox.events (position);

-- How far a consumer of a broker's messages has come in a partition of its source: package
-- inbox moves it in the transaction that makes the effect, and bridges in the one that
-- stores the jobs. One row a partition.
CREATE TABLE outbox.inbox_positions (
    consumer         text COLLATE "C" NOT NULL,
    source           text COLLATE "C" NOT NULL, -- a topic or a stream
    partition        integer          NOT NULL,
    position         bigint           NOT NULL DEFAULT -1, -- of the last message that was handled
    epoch            bigint           NOT NULL DEFAULT 0,  -- the fence: rises with each process that takes over
    moved_at         timestamptz      NOT NULL DEFAULT statement_timestamp(),
    lease_expires_at timestamptz,                          -- of a bridge, which one process at a time is
    PRIMARY KEY (consumer, source, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 100);

-- NextReplay: the replays of a sink that are not finished.
CREATE INDEX replays_open_idx ON outbox.replays (sink, id) WHERE finished_at IS NULL;
