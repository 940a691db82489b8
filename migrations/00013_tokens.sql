-- Bearer tokens of the API. Only hashes are stored: whoever reads this table, or
-- a backup of it, can call nothing.

-- +goose Up
CREATE TABLE outbox.tokens (
    id           text COLLATE "C" NOT NULL PRIMARY KEY, -- the part of the token that may be shown
    secret_hash  bytea            NOT NULL,
    name         text             NOT NULL,
    tenant_id    uuid             NOT NULL,
    all_tenants  boolean          NOT NULL, -- sees and acts on the jobs of every tenant, not of tenant_id alone
    capabilities text[]           NOT NULL,
    created_by   text             NOT NULL,
    created_at   timestamptz      NOT NULL DEFAULT statement_timestamp(),
    expires_at   timestamptz,
    last_used_at timestamptz, -- to the minute
    revoked_at   timestamptz,

    CONSTRAINT tokens_expire_at_a_time CHECK (isfinite(expires_at)),
    CONSTRAINT tokens_hash_is_sha256 CHECK (octet_length(secret_hash) = 32),
    CONSTRAINT tokens_names CHECK (octet_length(name) BETWEEN 1 AND 128 AND octet_length(created_by) BETWEEN 1 AND 256),
    CONSTRAINT tokens_may_do_something CHECK (cardinality(capabilities) BETWEEN 1 AND 64 AND array_position(capabilities, NULL) IS NULL)
);

-- +goose Down
DROP TABLE outbox.tokens;
