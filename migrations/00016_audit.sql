-- A tenant's acts, among those of others.
--
-- Locks: SHARE on outbox.audit while it is read: acts wait, and jobs do not
-- A million rows: half a second

-- +goose Up
-- ListAudit reads the acts of one tenant.
CREATE INDEX audit_tenant_idx ON outbox.audit (tenant_id, id)
    WHERE tenant_id IS NOT NULL;
