-- counts_events is called by a statement that closes many streamed jobs, stores their events with one INSERT, and
-- raises streamed by itself: the trigger of the history is not called for its rows. It is meant for the statement by
-- its time, so that another change in the same transaction has its event by stream_job. It is true, and wakes relays:
-- called as a sub-select in the statement's WHERE, it is carried out once, before the first row is changed.
--
-- A claim that stores its events calls it as well, though streamed says enough there: where the functions are of a
-- build before, whose triggers would count the event once more, such a statement fails.
CREATE OR REPLACE FUNCTION outbox.counts_events() RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('outbox.counts_events', statement_timestamp()::text, true), pg_notify('outbox_events', '');
    RETURN true;
END
$$;
