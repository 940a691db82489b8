-- Fair sharing of a queue between tenants: the due jobs of the tenants other than
-- root leave the index of due jobs for one of their own, which is ordered by
-- tenant (queries/share.sql).
--
-- The due jobs with a key, of all tenants, are in a second index besides, which is
-- ordered by tenant, too: only they pay for it.
--
-- Builds three indexes over the open jobs, about a second a million, and holds
-- writes to outbox.jobs up meanwhile. A dispatcher of an older build goes on, and
-- claims jobs of every tenant, but without the index that its statement was made
-- for: it reads the whole table for each claim. So migrate while few jobs are
-- open, or replace the dispatchers at once.

-- +goose Up

-- It begins with what is false for a job of the root tenant: that is all that such
-- a job pays. Both directions are the same so that (tenant_id, priority) can be
-- compared as one.
CREATE INDEX jobs_tenant_due_idx ON outbox.jobs (queue, tenant_id DESC, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE tenant_id <> '00000000-0000-0000-0000-000000000001' AND key IS NULL AND status IN ('pending', 'retrying');

-- FindKeyedTurns must not be carried out with jobs_keyed_due_idx: a planner that knows
-- of one tenant finds it as good. To it coalesce says that these are not the same rows.
CREATE INDEX jobs_keyed_turn_idx ON outbox.jobs (queue, tenant_id, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE key IS NOT NULL AND coalesce(status IN ('pending', 'retrying'), false);

CREATE INDEX jobs_root_due_idx ON outbox.jobs (queue, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE status IN ('pending', 'retrying') AND key IS NULL AND tenant_id = '00000000-0000-0000-0000-000000000001';
DROP INDEX outbox.jobs_due_idx;
ALTER INDEX outbox.jobs_root_due_idx RENAME TO jobs_due_idx;

-- +goose Down
CREATE INDEX jobs_all_due_idx ON outbox.jobs (queue, priority DESC, run_at, id)
    WITH (deduplicate_items = off)
    WHERE status IN ('pending', 'retrying') AND key IS NULL;
DROP INDEX outbox.jobs_due_idx;
DROP INDEX outbox.jobs_tenant_due_idx;
DROP INDEX outbox.jobs_keyed_turn_idx;
ALTER INDEX outbox.jobs_all_due_idx RENAME TO jobs_due_idx;
