-- What the schema of 24 migrations, as the main branch had it before they were squashed, lacks
-- of 00001_tables.sql and 00002_indexes.sql. Functions, views and row security follow as in
-- each migrate up. Once 0.1.0 is released this changes no more.

CREATE TABLE outbox.schema_files (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    checksum   bytea            NOT NULL,
    revision   integer          NOT NULL,
    applied_at timestamptz      NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT schema_files_checksum CHECK (octet_length(checksum) = 32)
);

CREATE TABLE outbox.lease_extensions (
    job_id     uuid        NOT NULL,
    epoch      bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, epoch)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);

CREATE TABLE outbox.chores (
    chore   text COLLATE "C" NOT NULL PRIMARY KEY,
    done_at timestamptz      NOT NULL
);

-- Times beyond the years 1 to 9999 become the first or last of them.
ALTER TABLE outbox.jobs
    DROP CONSTRAINT jobs_run_at_is_a_time, DROP CONSTRAINT jobs_deadline_is_a_time, DROP CONSTRAINT jobs_names,
    DROP CONSTRAINT jobs_counters, DROP CONSTRAINT jobs_lease;
UPDATE outbox.jobs
SET run_at     = greatest('0001-01-01 00:00:00+00', least('9999-12-31 23:59:59.999999+00', run_at)),
    created_at = greatest('0001-01-01 00:00:00+00', least('9999-12-31 23:59:59.999999+00', created_at)),
    deadline   = CASE WHEN deadline IS NOT NULL THEN greatest('0001-01-01 00:00:00+00', least('9999-12-31 23:59:59.999999+00', deadline)) END
WHERE run_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
   OR created_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
   OR deadline NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00';
CREATE DOMAIN outbox.moment AS timestamptz
    CONSTRAINT jobs_times CHECK (VALUE BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00');
ALTER DOMAIN outbox.lease DROP CONSTRAINT jobs_running_has_lease;
ALTER DOMAIN outbox.lease DROP CONSTRAINT jobs_running_was_claimed;
ALTER DOMAIN outbox.lease DROP CONSTRAINT jobs_cancel_requested_while_running;
ALTER DOMAIN outbox.lease ADD CONSTRAINT jobs_lease CHECK (
    CASE WHEN (VALUE).status = 'running'
        THEN num_nulls((VALUE).lease_owner, (VALUE).lease_expires_at, (VALUE).started_at) = 0 AND (VALUE).attempt > 0 AND (VALUE).epoch > 0
        ELSE num_nonnulls((VALUE).lease_owner, (VALUE).lease_expires_at, (VALUE).cancel_requested_at) = 0
    END);
ALTER TABLE outbox.jobs ADD CONSTRAINT jobs_values CHECK (
    num_nulls(queue::outbox.name, kind::outbox.name,
        attempt::outbox.counter, max_attempts::outbox.max_attempts, lost_leases::outbox.counter, epoch::outbox.epoch,
        run_at::outbox.moment, created_at::outbox.moment, deadline::outbox.moment,
        ROW(status, attempt, epoch, started_at, lease_expires_at, lease_owner, cancel_requested_at)::outbox.lease) <= 1);
ALTER TABLE outbox.schedules DROP CONSTRAINT schedules_next_at_is_a_time;
UPDATE outbox.schedules
SET next_at = greatest('0001-01-01 00:00:00+00', least('9999-12-31 23:59:59.999999+00', next_at)),
    since   = greatest('0001-01-01 00:00:00+00', least('9999-12-31 23:59:59.999999+00', since))
WHERE next_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
   OR since NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00';
ALTER TABLE outbox.schedules
    ADD CONSTRAINT schedules_next_at_is_a_time CHECK (
        next_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
        AND since BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00');

-- What it returns has changed.
DROP FUNCTION outbox.enqueue_claimed;

ALTER TABLE outbox.history ALTER COLUMN finished_at SET DEFAULT clock_timestamp();
ALTER TABLE outbox.attempts ALTER COLUMN finished_at SET DEFAULT clock_timestamp();

-- A claim reads the due jobs of root from the index that has all tenants', and so it is with
-- those that have a key. Building them holds up writes to outbox.jobs, about a second a
-- million open jobs.
DROP INDEX outbox.jobs_due_idx, outbox.jobs_tenant_due_idx, outbox.jobs_keyed_due_idx, outbox.jobs_keyed_turn_idx;
CREATE INDEX jobs_due_idx ON outbox.jobs (queue, tenant_id DESC, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE key IS NULL AND status IN ('pending', 'retrying');
CREATE INDEX jobs_keyed_due_idx ON outbox.jobs (queue, tenant_id DESC, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE key IS NOT NULL AND status IN ('pending', 'retrying');

ALTER TABLE outbox.jobs RESET (
    fillfactor, autovacuum_vacuum_scale_factor, autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor, autovacuum_vacuum_cost_delay);
ALTER TABLE outbox.jobs SET (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_analyze_scale_factor = 0.05, autovacuum_vacuum_cost_delay = 0);

-- One index for all lists of dead letters.
DROP INDEX outbox.jobs_dead_letter_idx, outbox.jobs_error_fingerprint_idx;
CREATE INDEX jobs_dead_letter_idx ON outbox.jobs (id, error_fingerprint)
    WHERE status IN ('failed', 'dead');

DROP FUNCTION outbox.claim_keyed(text, interval, smallint[], timestamptz[], uuid[], text, text[], uuid[], integer, integer);
