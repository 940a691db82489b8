-- sinks_behind returns which sinks have not read all of a day of the events, or have a running replay that has yet to
-- pass it, and the first and last position in it: NULL if the day is empty, so that every sink has read it. It runs as
-- its owner, because no other role sees a day on its own.
CREATE OR REPLACE FUNCTION outbox.sinks_behind(day regclass, OUT first_position bigint, OUT last_position bigint, OUT sinks text[])
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = 'outbox.events'::regclass AND inhrelid = day) THEN
        RAISE EXCEPTION '% is no day of the events', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('SELECT min(position), max(position) FROM %s', day) INTO first_position, last_position;
    sinks := ARRAY(
        SELECT s.sink
        FROM outbox.sinks AS s
        WHERE s.top < last_position
           OR last_position IS NOT NULL AND s.holes && int8range(first_position, last_position, '[]')
           OR EXISTS (SELECT FROM outbox.replays AS r
                      WHERE r.sink = s.sink AND r.finished_at IS NULL
                        AND r.position < sinks_behind.last_position AND r.last_position >= first_position)
        ORDER BY s.sink);
END
$$;
REVOKE ALL ON FUNCTION outbox.sinks_behind(regclass) FROM PUBLIC; -- it runs as its owner
