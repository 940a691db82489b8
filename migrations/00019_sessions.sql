-- The sessions of the console that people have ended: every process refuses a copy of such a cookie.
--
-- Locks: nothing: a new table
-- A million rows: no row is read or written

-- +goose Up
CREATE TABLE outbox.ended_sessions (
    session    bytea       PRIMARY KEY, -- SHA-256 of its id; the cookie is stored nowhere
    expires_at timestamptz NOT NULL,    -- by then no process accepts the cookie anyway

    CONSTRAINT ended_sessions_hash CHECK (octet_length(session) = 32)
);
