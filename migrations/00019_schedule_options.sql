-- What outbox.Options say of a job, schedules say of theirs: the rules of keys, a
-- deadline, and whether they are held. New columns without defaults: the table is
-- locked for a moment, and not rewritten.

-- +goose Up
ALTER TABLE outbox.schedules
    ADD COLUMN deadline   interval, -- after the tick
    ADD COLUMN hold       boolean,  -- NULL for false, as in jobs
    ADD COLUMN max_active smallint,
    ADD COLUMN ordered    boolean,
    ADD COLUMN on_death   text COLLATE "C",
    ADD COLUMN park_after interval,
    ADD COLUMN on_lapse   text COLLATE "C",
    ADD CONSTRAINT schedules_options CHECK (
        (deadline IS NULL OR deadline > interval '0')
        AND (max_active IS NULL OR max_active BETWEEN 2 AND 1000)
        AND (on_death IS NULL OR on_death IN ('skip', 'park'))
        AND (on_lapse IS NULL OR on_lapse IN ('fail-stale', 'block')));

-- +goose Down
ALTER TABLE outbox.schedules
    DROP CONSTRAINT schedules_options,
    DROP COLUMN deadline,
    DROP COLUMN hold,
    DROP COLUMN max_active,
    DROP COLUMN ordered,
    DROP COLUMN on_death,
    DROP COLUMN park_after,
    DROP COLUMN on_lapse;
