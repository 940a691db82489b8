-- stores_events is called by statements of builds before counts_events existed. They store the events of the streamed
-- jobs that they start or close themselves, many with one INSERT; then stream_job numbers the events and stores none.
-- The setting identifies the statement by its time, so that stream_job stores the event of another change in the same
-- transaction. The function returns true, and wakes relays. Called in a sub-select in the statement's WHERE, it is
-- executed once, before the first row is changed.
CREATE OR REPLACE FUNCTION outbox.stores_events() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('outbox.stores_events', statement_timestamp()::text, true), pg_notify('outbox_events', '');
    RETURN true;
END
$$;
