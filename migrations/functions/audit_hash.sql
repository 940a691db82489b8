-- audit_hash returns the link of an entry: the SHA-256 of the link before it and of the entry's place and columns as a
-- JSON array of texts and nulls, in which the end of one element cannot be mistaken for the beginning of the next. It
-- does not depend on any setting of a session. ReadAuditChain (queries/audit.sql) repeats this computation, because a
-- check must not have to trust a function of this schema.
--
-- Add a later column of the audit at the end, and only where it is not NULL, so that the links of older entries stay
-- the same.
CREATE OR REPLACE FUNCTION outbox.audit_hash(previous bytea, seq bigint, entry outbox.audit) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(previous || convert_to(json_build_array(seq::text, entry.id::text, extract(epoch FROM entry.at)::text, entry.actor, entry.act,
    entry.tenant_id::text, entry.job_id::text, entry.queue, entry.target, entry.before::text, entry.after::text,
    entry.reason, entry.request_id)::text, 'UTF8'));
