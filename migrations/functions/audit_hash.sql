-- audit_hash is the link of an entry: SHA-256 of the link before it and of the entry's
-- place and columns as a JSON array of texts and nulls, in which the end of one cannot be
-- taken for the beginning of the next. No setting of a session has a part in it.
-- ReadAuditChain (queries/audit.sql) says the same again, because a check must not have to
-- trust a function of this schema.
--
-- A column that the audit gets later is added at the end, and only where it is not NULL:
-- the links of older entries stay what they are.
CREATE OR REPLACE FUNCTION outbox.audit_hash(previous bytea, seq bigint, entry outbox.audit) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(previous || convert_to(json_build_array(seq::text, entry.id::text, extract(epoch FROM entry.at)::text, entry.actor, entry.act,
    entry.tenant_id::text, entry.job_id::text, entry.queue, entry.target, entry.before::text, entry.after::text,
    entry.reason, entry.request_id)::text, 'UTF8'));
