-- record_act writes the row of an act that a function of this schema carries out. Without
-- an actor it is the login that is connected, from where: ada@10.1.2.3, or ada@local
-- through a socket. That is session_user, which SET ROLE and functions that run as
-- their owner leave as it is.
CREATE OR REPLACE FUNCTION outbox.record_act(act text, tenant_id uuid, job_id uuid, queue text, target text, before jsonb, after jsonb,
    actor text, request_id text, reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, target, before, after)
    VALUES (coalesce(nullif(actor, ''), session_user || '@' || coalesce(host(inet_client_addr()), 'local')), nullif(request_id, ''), nullif(reason, ''),
        act, tenant_id, job_id, queue, target, before, after);
END
$$;
