-- Who did what: a row for each act of an operator, written by the statement or
-- the transaction that acts, so that there is no act without its row and no row
-- without its act. A new table: nothing of yours is locked or changed.

-- +goose Up
CREATE TABLE outbox.audit (
    id         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at         timestamptz NOT NULL DEFAULT statement_timestamp(),
    actor      text        NOT NULL, -- a person, a token's name, or unknown
    act        text        NOT NULL, -- noun.verb: job.retry, queue.pause
    tenant_id  uuid,                 -- whose job or thing it is; NULL is the whole installation's
    job_id     uuid,
    queue      text COLLATE "C",     -- of the job, or the queue itself
    target     text,                 -- what else it was done to: a key, a schedule, a token
    before     jsonb,                -- what the act changed, as it was
    after      jsonb,                -- and as it became
    reason     text,
    request_id text,

    CONSTRAINT audit_names CHECK (octet_length(actor) BETWEEN 1 AND 256 AND octet_length(act) BETWEEN 1 AND 128)
);

CREATE INDEX audit_job_id_idx ON outbox.audit (job_id) WHERE job_id IS NOT NULL;

-- +goose StatementBegin
-- record_act writes the row of an act that a function of this schema carries out. Without
-- an actor it is the login that is connected, from where: ada@10.1.2.3, or ada@local
-- through a socket. That is session_user, which SET ROLE and functions that run as
-- their owner leave as it is.
CREATE FUNCTION outbox.record_act(act text, tenant_id uuid, job_id uuid, queue text, target text, before jsonb, after jsonb,
    actor text, request_id text, reason text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO outbox.audit (actor, request_id, reason, act, tenant_id, job_id, queue, target, before, after)
    VALUES (coalesce(nullif(actor, ''), session_user || '@' || coalesce(host(inet_client_addr()), 'local')), nullif(request_id, ''), nullif(reason, ''),
        act, tenant_id, job_id, queue, target, before, after);
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION outbox.record_act(text, uuid, uuid, text, text, jsonb, jsonb, text, text, text);
DROP TABLE outbox.audit;
