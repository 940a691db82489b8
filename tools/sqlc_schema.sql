-- What the migrations expect: "posthaste migrate up" makes it before it applies them.
CREATE SCHEMA outbox;

-- What can be selected from a sequence.
CREATE TABLE outbox.events_position_seq (last_value bigint NOT NULL);
