-- What the migrations expect: "posthaste migrate up" makes it before it applies them.
CREATE SCHEMA outbox;

-- What can be selected from a sequence.
CREATE TABLE outbox.events_position_seq (last_value bigint NOT NULL);

-- The list of applied migrations, which the library that applies them keeps.
CREATE TABLE outbox.schema_version (version_id bigint NOT NULL, is_applied boolean NOT NULL);
