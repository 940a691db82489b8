-- What the migrations expect: "posthaste migrate up" makes it before it applies them.
CREATE SCHEMA outbox;
