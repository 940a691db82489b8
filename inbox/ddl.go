package inbox

// DDL makes the table that [Once] writes to, in a database that has no other part
// of Posthaste. It may be run again. It locks nothing that exists.
const DDL = `CREATE SCHEMA IF NOT EXISTS outbox;

CREATE TABLE IF NOT EXISTS outbox.inbox (
    consumer    text        NOT NULL,
    message_id  text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX IF NOT EXISTS inbox_received_at_idx ON outbox.inbox (received_at);
`
