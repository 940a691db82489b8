-- name: EnsureDays :one
-- EnsureDays makes the partitions of the history and the events up to @days_ahead
-- days from now and returns how many it made.
SELECT outbox.ensure_days(@days_ahead)::integer;

-- name: DropDay :exec
-- DropDay drops a day of the history or the events by its table's name. The day is
-- locked first, its parent then; lock_timeout bounds the wait for each.
SELECT outbox.drop_day(CAST(@day::text AS regclass));
