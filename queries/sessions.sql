-- name: IsSessionEnded :one
-- IsSessionEnded reports whether somebody has ended a session of the console.
SELECT EXISTS (SELECT FROM outbox.ended_sessions WHERE session = @session)::boolean AS ended;

-- name: EndSession :exec
-- EndSession ends a session of the console, whose cookie would be valid for up to @lifetime. It removes those whose
-- cookies are no longer valid anyway, so that nothing else has to.
WITH expired AS (
    DELETE FROM outbox.ended_sessions WHERE expires_at < statement_timestamp()
)
INSERT INTO outbox.ended_sessions (session, expires_at)
VALUES (@session, statement_timestamp() + @lifetime::interval)
ON CONFLICT (session) DO NOTHING;
