-- Which dispatchers there are: each writes its row when it starts and every
-- minute, and deletes it when it stops. For people only: nothing in the engine
-- depends on it, and a lease never does.

-- +goose Up
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

SELECT outbox.secure(); -- the table is newer than 00014_roles.sql

-- +goose Down
DROP TABLE outbox.workers;
