-- record_act writes the audit row of an act that a function of this schema carries out. Without an actor it records the
-- connected login and its address: ada@10.1.2.3, or ada@local through a socket. That is session_user, which neither SET
-- ROLE nor functions that run as their owner change.
CREATE OR REPLACE FUNCTION outbox.record_act(act text, tenant_id uuid, job_id uuid, queue text, target text, before jsonb, after jsonb,
    actor text, request_id text, reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, target, before, after)
    VALUES (coalesce(nullif(actor, ''), session_user || '@' || coalesce(host(inet_client_addr()), 'local')),
        nullif(request_id, ''), nullif(reason, ''),
        act, tenant_id, job_id, queue, target, before, after);
END
$$;
