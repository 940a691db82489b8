package inbox

// DDL creates the tables that [Once] and [Position.Advance] write to, in a database without any other part of
// Posthaste. It may be run repeatedly. It locks nothing that exists.
//
// No reaper runs in such a database: delete old rows yourself, daily. Keep each row for longer than the broker can
// deliver its message, and than any replay reaches back:
//
//	DELETE FROM outbox.inbox WHERE received_at < now() - interval '14 days'
const DDL = `DO $$ BEGIN
    IF to_regnamespace('outbox') IS NULL THEN -- IF NOT EXISTS would ask for the privilege all the same
        CREATE SCHEMA IF NOT EXISTS outbox;
    END IF;
END $$;

CREATE TABLE IF NOT EXISTS outbox.inbox (
    consumer    text        NOT NULL,
    message_id  text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX IF NOT EXISTS inbox_received_at_idx ON outbox.inbox (received_at);

CREATE TABLE IF NOT EXISTS outbox.inbox_positions (
    consumer         text COLLATE "C" NOT NULL,
    source           text COLLATE "C" NOT NULL,
    partition        integer          NOT NULL,
    position         bigint           NOT NULL DEFAULT -1,
    epoch            bigint           NOT NULL DEFAULT 0,
    moved_at         timestamptz      NOT NULL DEFAULT statement_timestamp(),
    lease_expires_at timestamptz,
    PRIMARY KEY (consumer, source, partition)
) WITH (fillfactor = 20, autovacuum_vacuum_threshold = 100);
`
