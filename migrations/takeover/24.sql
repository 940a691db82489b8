-- What the schema of 24 migrations, as the main branch had it before they were squashed, lacks
-- of 00001_tables.sql and 00002_indexes.sql. Functions, views and row security follow as in
-- each migrate up. Once 0.1.0 is released this changes no more.

CREATE TABLE outbox.schema_files (
    name       text COLLATE "C" NOT NULL PRIMARY KEY,
    checksum   bytea            NOT NULL,
    revision   integer          NOT NULL,
    applied_at timestamptz      NOT NULL DEFAULT statement_timestamp(),

    CONSTRAINT schema_files_checksum CHECK (octet_length(checksum) = 32)
);

CREATE TABLE outbox.lease_extensions (
    job_id     uuid        NOT NULL,
    epoch      bigint      NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, epoch)
) WITH (fillfactor = 50, autovacuum_vacuum_threshold = 100);
