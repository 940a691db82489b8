package probe

// Schema creates the business tables of the probes. Order ids are the keys of the jobs that were enqueued with them.
const Schema = `
	CREATE TABLE effects (job_id uuid NOT NULL, epoch bigint NOT NULL, n integer NOT NULL, worker text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
	CREATE TABLE items (id integer PRIMARY KEY, state text NOT NULL, changes integer NOT NULL DEFAULT 0, changed_by uuid);
	CREATE TABLE orders (id text PRIMARY KEY);
	CREATE TABLE lines (key text PRIMARY KEY, last bigint NOT NULL);
	CREATE TABLE gates (opened timestamptz NOT NULL DEFAULT now())`
