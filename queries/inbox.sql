-- name: ReceiveMessage :execrows
-- ReceiveMessage records that a consumer handles a message; no row means that a committed transaction has handled it.
-- It waits for a concurrent transaction with the same message.
INSERT INTO outbox.inbox (consumer, message_id)
VALUES (@consumer, @message_id)
ON CONFLICT DO NOTHING;

-- name: SeekPosition :one
-- SeekPosition takes a partition over from the process that has read it, and returns the position. It waits for a
-- transaction that is moving the position, whose commit counts.
INSERT INTO outbox.inbox_positions AS p (consumer, source, partition, epoch)
VALUES (@consumer, @source, @partition, 1)
ON CONFLICT (consumer, source, partition) DO UPDATE
SET epoch = p.epoch + 1
RETURNING p.position, p.epoch;

-- name: ResetPosition :exec
-- ResetPosition sets a position, and takes the partition from the process that reads it.
INSERT INTO outbox.inbox_positions AS p (consumer, source, partition, position, epoch)
VALUES (@consumer, @source, @partition, @position, 1)
ON CONFLICT (consumer, source, partition) DO UPDATE
SET position = excluded.position, epoch = p.epoch + 1, moved_at = statement_timestamp();

-- name: AdvancePosition :many
-- AdvancePosition moves a position forward, unless the partition has been taken over, and returns the id of its own
-- transaction. It does not move a position below @least: some message was rolled back.
UPDATE outbox.inbox_positions
SET position = @position, moved_at = statement_timestamp()
WHERE consumer = @consumer
  AND source = @source
  AND partition = @partition
  AND epoch = @epoch
  AND position < @position
  AND position >= @least
RETURNING pg_current_xact_id()::text::bigint AS xid;

-- name: PositionMoved :many
-- PositionMoved returns why a position was not moved.
SELECT position, epoch
FROM outbox.inbox_positions
WHERE consumer = @consumer
  AND source = @source
  AND partition = @partition
LIMIT 1;
