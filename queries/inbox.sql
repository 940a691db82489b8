-- name: ReceiveMessage :execrows
-- ReceiveMessage records that a consumer handles a message; no row means that a
-- committed transaction has handled it. A concurrent transaction with the same
-- message is waited for.
INSERT INTO outbox.inbox (consumer, message_id)
VALUES (@consumer, @message_id)
ON CONFLICT DO NOTHING;
