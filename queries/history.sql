-- name: EnsureHistory :one
-- EnsureHistory makes the partitions of the history up to @days_ahead days from
-- now and returns how many it made.
SELECT outbox.ensure_history(@days_ahead)::integer;
