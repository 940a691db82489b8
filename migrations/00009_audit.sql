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

-- +goose Down
DROP TABLE outbox.audit;
