-- name: InsertAudit :exec
-- InsertAudit records an act in the transaction that acts. A statement that acts alone records it in a CTE of its own
-- instead, as RetryJob does; a function of the schema that acts calls outbox.record_act. Empty texts and NULLs stand
-- for what does not apply.
INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, target, before, after)
VALUES (@actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), @act, sqlc.narg(tenant_id)::uuid, sqlc.narg(job_id)::uuid,
    nullif(@queue::text, ''), nullif(@target::text, ''), sqlc.narg(before)::jsonb, sqlc.narg(after)::jsonb);

-- name: InsertReads :exec
-- InsertReads records that the actor reads what only payload.read shows of these jobs: in one statement, because each
-- transaction takes the lock of the chain.
INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, target)
SELECT @actor, nullif(@request_id::text, ''), nullif(@reason::text, ''), 'payload.read', job.tenant_id, job.id, nullif(job.queue, ''), @target::text
FROM (SELECT unnest(@tenant_ids::uuid[]) AS tenant_id,
             unnest(@job_ids::uuid[])    AS id,
             unnest(@queues::text[])     AS queue) AS job;

-- name: ListAudit :many
-- ListAudit returns up to @max_rows acts with an id between @after_id and @before_id, newest first; replaced payloads
-- only if @with_payloads is set.
SELECT id, at, actor, act, tenant_id, job_id, coalesce(queue, '')::text AS queue, coalesce(target, '')::text AS target,
       (CASE WHEN NOT @with_payloads::boolean AND jsonb_typeof(before) = 'object' THEN before - 'payload_base64' ELSE before END)::jsonb AS before,
       coalesce(octet_length(before ->> 'payload_base64'), 0)::integer AS payload_bytes,
       after, coalesce(reason, '')::text AS reason, coalesce(request_id, '')::text AS request_id
FROM outbox.audit
WHERE audit.id < @before_id
  AND audit.id > @after_id
  AND audit.at >= @since
  AND audit.at < @until
  AND (@actor::text = '' OR audit.actor = @actor)
  AND (@act::text = '' OR audit.act = @act)
  AND (@queue::text = '' OR audit.queue = @queue)
  AND (@target::text = '' OR audit.target = @target)
  AND (@request_id::text = '' OR audit.request_id = @request_id)
  AND (sqlc.narg(job_id)::uuid IS NULL OR audit.job_id = sqlc.narg(job_id))
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id))
ORDER BY audit.id DESC
LIMIT @max_rows;

-- name: FindReplacedPayloads :many
-- FindReplacedPayloads returns what ListAudit omits of these acts, of one tenant if one is given.
SELECT id, before::jsonb AS before
FROM outbox.audit
WHERE audit.id = ANY(@ids::bigint[])
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id));

-- name: ListQueueActs :many
-- ListQueueActs returns up to @max_rows acts on a queue and its keys, but not on its jobs, newest first. It reads no
-- others: they have an index.
SELECT id, at, actor, act, tenant_id, job_id, coalesce(queue, '')::text AS queue, coalesce(target, '')::text AS target,
       before::jsonb AS before, 0::integer AS payload_bytes,
       after, coalesce(reason, '')::text AS reason, coalesce(request_id, '')::text AS request_id
FROM outbox.audit
WHERE audit.queue = @queue::text
  AND audit.job_id IS NULL
  AND audit.queue IS NOT NULL
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id))
ORDER BY audit.id DESC
LIMIT @max_rows;

-- name: FindQueueActsReach :one
-- FindQueueActsReach returns the id of the act after the newest @max_rows on a queue and its keys, by whichever tenant;
-- 0 if there are no more. The index has no tenant: a list of one tenant's acts stops there, however few it has found.
-- Row-level security would leave out rows that the list reads all the same: see BindTenant.
SELECT coalesce((
    SELECT audit.id
    FROM outbox.audit
    WHERE audit.queue = @queue::text
      AND audit.job_id IS NULL
      AND audit.queue IS NOT NULL
    ORDER BY audit.id DESC
    LIMIT 1 OFFSET @max_rows::integer
), 0)::bigint AS id;

-- name: ListOthersActs :many
-- ListOthersActs returns up to @max_rows acts that changed a job, newest first, with the job's status and error code
-- before: acts with an id above @after_id of other requests than @request_id, on jobs on which that one has not acted.
SELECT audit.at, audit.actor, audit.act, coalesce(audit.request_id, '')::text AS request_id, audit.job_id,
       (audit.before ->> 'status')::text AS status, coalesce(audit.before ->> 'error_code', '')::text AS error_code
FROM outbox.audit
WHERE audit.id > @after_id
  AND audit.at >= @since
  AND audit.at < @until
  AND audit.job_id IS NOT NULL
  AND audit.before ->> 'status' IS NOT NULL
  AND audit.request_id IS DISTINCT FROM @request_id::text
  AND (@queue::text = '' OR audit.queue = @queue)
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id))
  AND NOT EXISTS ( -- the OFFSET makes it a search in the index of jobs, not a join
      SELECT FROM outbox.audit AS own WHERE own.job_id = audit.job_id AND own.request_id = @request_id OFFSET 0)
ORDER BY audit.id DESC
LIMIT @max_rows;

-- name: FindAuditReach :many
-- FindAuditReach returns the act after @max_rows acts of the same tenant with an id below @before_id: ListAudit reads
-- this many, if it stops there, however few of them match. It returns nothing if there are no more.
SELECT id, at
FROM outbox.audit
WHERE audit.id < @before_id
  AND (sqlc.narg(tenant_id)::uuid IS NULL OR audit.tenant_id = sqlc.narg(tenant_id))
ORDER BY audit.id DESC
LIMIT 1 OFFSET @max_rows::integer;

-- name: TrimAudit :one
-- TrimAudit deletes up to @max_rows of the oldest acts that are older than @keep, and leaves the chain whole.
SELECT outbox.trim_audit(@keep::interval, @max_rows::integer)::bigint AS trimmed;

-- name: ReadAuditChain :many
-- ReadAuditChain returns up to @max_rows links of the audit's chain after @after. Each comes with what it must be the
-- hash of, besides the link before it: an act's place and columns, in the form of outbox.audit_hash, or '' if the act
-- is not there. One snapshot has both. is_anchor marks the very first link, which has no act.
SELECT chain.seq, chain.hash,
       coalesce(chain.audit_id, 0)::bigint AS audit_id,
       (audit.id IS NOT NULL)::boolean AS has_act,
       (chain.audit_id IS NULL AND NOT EXISTS (SELECT FROM outbox.audit_chain AS earlier WHERE earlier.seq < chain.seq))::boolean AS is_anchor,
       coalesce(CASE WHEN audit.id IS NOT NULL THEN
           pg_catalog.json_build_array(chain.seq::text, audit.id::text, extract(epoch FROM audit.at)::text, audit.actor, audit.act,
               audit.tenant_id::text, audit.job_id::text, audit.queue, audit.target, audit.before::text, audit.after::text,
               audit.reason, audit.request_id) END::text, '')::text AS entry
FROM outbox.audit_chain AS chain
LEFT JOIN outbox.audit ON audit.id = chain.audit_id
WHERE chain.seq > @after
ORDER BY chain.seq
LIMIT @max_rows;

-- name: FindUnchainedAudit :one
-- FindUnchainedAudit looks at up to @max_rows acts with an id above @after: it returns how many there are, the last of
-- them, how many have no link in the chain, and up to a hundred of those. An act and its link are committed together,
-- and trimmed together.
WITH act AS MATERIALIZED (
    SELECT audit.id, NOT EXISTS (SELECT FROM outbox.audit_chain WHERE audit_chain.audit_id = audit.id) AS unchained
    FROM outbox.audit
    WHERE audit.id > @after
    ORDER BY audit.id
    LIMIT @max_rows
)
SELECT count(*) AS looked_at, coalesce(max(act.id), 0)::bigint AS last, count(*) FILTER (WHERE act.unchained) AS missing,
       ARRAY(SELECT act.id FROM act WHERE act.unchained ORDER BY act.id LIMIT 100)::bigint[] AS unchained
FROM act;
