-- stores_events is called by statements of builds before counts_events: they store the events of
-- the streamed jobs that they start or close by themselves, many with one INSERT, and stream_job
-- numbers them and stores none. It is meant for the statement by its time, so that another change in the same
-- transaction has its event by stream_job. It is true, and wakes relays: called as a
-- sub-select in the statement's WHERE, it is carried out once, before the first row is changed.
CREATE OR REPLACE FUNCTION outbox.stores_events() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('outbox.stores_events', statement_timestamp()::text, true), pg_notify('outbox_events', '');
    RETURN true;
END
$$;
