-- What a consumer has already handled: inbox.Once writes here in the consumer's
-- own transaction.

-- +goose Up
CREATE TABLE outbox.inbox (
    consumer    text        NOT NULL,
    message_id  text        NOT NULL,
    received_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    PRIMARY KEY (consumer, message_id)
);

CREATE INDEX inbox_received_at_idx ON outbox.inbox (received_at);

-- +goose Down
DROP TABLE outbox.inbox;
