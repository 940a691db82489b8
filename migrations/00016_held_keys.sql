-- An idempotency key remembers whether its job was stored held: a repeat of the
-- request answers like the first, also after the job was released. The column is
-- added without writing a row; NULL is false.

-- +goose Up
ALTER TABLE outbox.idempotency_keys ADD COLUMN held boolean;

SELECT outbox.secure();

-- +goose Down
ALTER TABLE outbox.idempotency_keys DROP COLUMN held;
