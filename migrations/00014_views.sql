-- Filters of the list of jobs that people of the console have given names.
--
-- Locks: nothing: a new table
-- A million rows: no row is read or written

-- +goose Up
CREATE TABLE outbox.saved_views (
    tenant_id uuid             NOT NULL, -- whose people they are of; zero: of those who see all tenants
    person    text COLLATE "C" NOT NULL, -- who alone sees it, as an actor of the audit; '' for all of the tenant
    name      text COLLATE "C" NOT NULL,
    query     text             NOT NULL, -- parameters of the console's page of jobs
    saved_by  text             NOT NULL,
    saved_at  timestamptz      NOT NULL DEFAULT statement_timestamp(),

    PRIMARY KEY (tenant_id, person, name),
    CONSTRAINT saved_views_texts CHECK (octet_length(name) BETWEEN 1 AND 100 AND octet_length(query) BETWEEN 1 AND 4096)
);
