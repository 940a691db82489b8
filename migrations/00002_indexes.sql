-- Indexes. Those of outbox.jobs are paid for by each enqueue, claim and settlement, as far as
-- their predicates are true, and by each statement that stores a job even where they are not:
-- so each names the statements that need it (a name in queries/, a function in functions/).
-- Those of the history are paid for by each settlement.

-- +goose Up
-- ClaimJobs reads one priority of a tenant at a time, from a cursor on; SurveyQueue reads
-- backwards. No two entries are equal, so looking for duplicates on full pages is in vain.
CREATE INDEX jobs_due_idx ON outbox.jobs (queue, tenant_id DESC, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE key IS NULL AND status IN ('pending', 'retrying');

-- ExpireLeases looks for lapsed leases from a remembered position. An extension therefore
-- writes an index entry, but only jobs that outlive a third of the lease are extended at all;
-- with an index on id alone, a held snapshot would make each pass read every job that was
-- claimed since.
CREATE INDEX jobs_lease_idx ON outbox.jobs (lease_expires_at)
    WHERE status = 'running';

-- ExpireDeadlines looks for jobs whose deadline has come; dead letters wait for a person, not
-- for a time. Jobs without a deadline are not in it.
CREATE INDEX jobs_deadline_idx ON outbox.jobs (deadline)
    WHERE deadline IS NOT NULL AND status NOT IN ('failed', 'dead');

-- ListDeadLetters, GroupDeadLetters, CountDeadLetters and FindDeadLetters, ListJobs for dead
-- letters and TrimDeadLetters read it in the order of ids. Those that failed alike are picked
-- out without a look at the others' rows.
CREATE INDEX jobs_dead_letter_idx ON outbox.jobs (id, error_fingerprint)
    WHERE status IN ('failed', 'dead');

-- ListJobs reads a tenant's jobs, newest first. An installation that has only the root tenant
-- pays nothing for it.
CREATE INDEX jobs_tenant_idx ON outbox.jobs (tenant_id, id)
    WHERE tenant_id <> '00000000-0000-0000-0000-000000000001';

-- Jobs with a key. Every predicate begins with what is false for a job without one.

-- claim_keyed and SurveyQueue read it as ClaimJobs reads jobs_due_idx.
CREATE INDEX jobs_keyed_due_idx ON outbox.jobs (queue, tenant_id DESC, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE key IS NOT NULL AND status IN ('pending', 'retrying');

-- claim_keyed, promote_keys, FindMovableKeys and SweepKeys count here what runs of a key. The
-- limit is also the database's own: a slot holds one running job, and jobs_key_rules says how
-- many slots there are.
CREATE UNIQUE INDEX jobs_slot_idx ON outbox.jobs (tenant_id, queue, key, slot)
    WHERE key IS NOT NULL AND status = 'running';

-- What waits with a key and in no line: the next one that promote_keys promotes, and
-- FindMovableKeys and SweepKeys look for, is the first blocked entry of its key.
CREATE INDEX jobs_key_idx ON outbox.jobs (tenant_id, queue, key, status, priority DESC, run_at, id)
    WHERE key IS NOT NULL AND ordered IS NULL AND status <> 'running';

-- The line of an ordered key: its head, which claim_keyed, promote_keys, FindMovableKeys and
-- SweepKeys look for, is the first entry. Held jobs are not in line yet, nor are dead letters
-- that the others pass over.
CREATE INDEX jobs_line_idx ON outbox.jobs (tenant_id, queue, key, line_position, id)
    WHERE ordered AND status <> 'created' AND (status NOT IN ('failed', 'dead') OR on_death IS DISTINCT FROM 'skip');

-- The newest rows of the history, for GET /events. A BRIN index is a few bytes for each half
-- a megabyte of rows, and what is inserted at the end of the table looks at one page of it
-- and writes nothing: settlements do not pay for readers.
CREATE INDEX history_finished_at_idx ON outbox.history USING brin (finished_at) WITH (pages_per_range = 64, autosummarize = on);

CREATE INDEX history_id_idx ON outbox.history (id);

CREATE INDEX history_tenant_idx ON outbox.history (tenant_id, id)
    WHERE tenant_id <> '00000000-0000-0000-0000-000000000001';

CREATE INDEX attempts_finished_at_idx ON outbox.attempts (finished_at);

CREATE INDEX audit_job_id_idx ON outbox.audit (job_id) WHERE job_id IS NOT NULL;

CREATE INDEX idempotency_keys_job_id_idx ON outbox.idempotency_keys (job_id);

CREATE INDEX inbox_received_at_idx ON outbox.inbox (received_at);

CREATE INDEX keys_parked_idx ON outbox.keys (parked_at) WHERE parked_at IS NOT NULL;

CREATE INDEX progress_created_at_idx ON outbox.progress (created_at, job_id);

CREATE INDEX schedules_next_at_idx ON outbox.schedules (next_at)
    WHERE paused_at IS NULL;
