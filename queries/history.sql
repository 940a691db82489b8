-- name: EnsureHistory :one
-- EnsureHistory makes the partitions of the history up to @days_ahead days from
-- now and returns how many it made.
SELECT outbox.ensure_history(@days_ahead)::integer;

-- name: DropHistory :exec
-- DropHistory drops a day of the history by its table's name. The day is locked
-- first, its parent then; lock_timeout bounds the wait for each.
SELECT outbox.drop_history(CAST(@day::text AS regclass));
