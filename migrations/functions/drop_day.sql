-- drop_day drops a day of the history or of the events, or empties it if a transaction that has written to its parent
-- keeps that locked for longer than lock_timeout. It runs as its owner, because only the owner of a table can
-- drop it. It only accepts days before yesterday; and only days of the events that every sink has read, unless lose is
-- set. It locks the day before its parent; see reaper/days.go.
CREATE OR REPLACE FUNCTION outbox.drop_day(day regclass, lose boolean DEFAULT false) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD' SET timezone = 'UTC' AS $$ -- in which a day's bound is printed and read back
DECLARE
    parent regclass;
    behind text[];
BEGIN
    SELECT inhparent::regclass INTO parent
    FROM pg_inherits
    JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent IN ('outbox.history'::regclass, 'outbox.events'::regclass)
      AND child.oid = day
      AND (regexp_match(pg_get_expr(child.relpartbound, child.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz
          < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC';
    IF NOT FOUND THEN
        RAISE EXCEPTION '% is no day of the history or the events before yesterday', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', day);
    -- Check only now: a sink may have gone back since the caller has checked.
    IF parent = 'outbox.events'::regclass AND NOT lose THEN
        SELECT sinks INTO behind FROM outbox.sinks_behind(day);
        IF behind <> '{}' THEN
            RAISE EXCEPTION '% has events that sinks have not read: %', day, array_to_string(behind, ', ') USING ERRCODE = 'object_in_use';
        END IF;
    END IF;
    BEGIN
        EXECUTE format('DROP TABLE %s', day);
    EXCEPTION WHEN lock_not_available THEN
        IF pg_relation_size(day) > 0 THEN -- the disk is free then; an empty table waits for the next try
            EXECUTE format('TRUNCATE ONLY %s', day);
        END IF;
    END;
END
$$;
REVOKE ALL ON FUNCTION outbox.drop_day(regclass, boolean) FROM PUBLIC; -- it runs as its owner
