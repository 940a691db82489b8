-- name: FindToken :many
-- FindToken returns what authenticating a token needs. The database's clock determines how long the token is still
-- valid; NULL is infinitely long.
SELECT secret_hash, name, tenant_id, all_tenants, capabilities,
       (revoked_at IS NOT NULL)::boolean AS revoked,
       (expires_at - statement_timestamp())::interval AS expires_in,
       (last_used_at IS NULL OR last_used_at < statement_timestamp() - interval '1 minute')::boolean AS touch_due
FROM outbox.tokens
WHERE id = @id
LIMIT 1;

-- name: TouchToken :exec
-- TouchToken records that the token was used, at most once a minute however many processes there are. It does not wait
-- for the disk.
WITH quick AS MATERIALIZED (
    SELECT set_config('synchronous_commit', 'off', true) AS mode
)
UPDATE outbox.tokens
SET last_used_at = statement_timestamp()
FROM quick
WHERE id = @id
  AND (last_used_at IS NULL OR last_used_at < statement_timestamp() - interval '1 minute');

-- name: CreateToken :one
-- CreateToken stores a token and returns it as ListTokens does.
INSERT INTO outbox.tokens (id, secret_hash, name, tenant_id, all_tenants, capabilities, created_by, expires_at)
VALUES (@id, @secret_hash, @name, @tenant_id, @all_tenants, @capabilities, @created_by,
        statement_timestamp() + sqlc.narg('lifetime')::interval)
RETURNING id, name, tenant_id, all_tenants, capabilities, created_by, created_at, expires_at, last_used_at, revoked_at;

-- name: ListTokens :many
-- ListTokens returns up to @max_rows tokens, newest first, including those that are no longer valid.
SELECT id, name, tenant_id, all_tenants, capabilities, created_by, created_at, expires_at, last_used_at, revoked_at
FROM outbox.tokens
ORDER BY created_at DESC, id
LIMIT @max_rows;

-- name: RevokeToken :many
-- RevokeToken ends a token for good and returns it; a token that was revoked before keeps its time.
WITH found AS MATERIALIZED (
    SELECT tokens.id, tokens.revoked_at
    FROM outbox.tokens
    WHERE tokens.id = @id
    FOR UPDATE
)
UPDATE outbox.tokens
SET revoked_at = coalesce(tokens.revoked_at, statement_timestamp())
FROM found
WHERE tokens.id = found.id
RETURNING tokens.id, tokens.name, tokens.tenant_id, tokens.all_tenants, tokens.capabilities, tokens.created_by, tokens.created_at,
    tokens.expires_at, tokens.last_used_at, tokens.revoked_at, (found.revoked_at IS NOT NULL)::boolean AS was_revoked;
