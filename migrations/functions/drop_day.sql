-- drop_day drops a day of the history or of the events. It runs as its owner, because only
-- the owner of a table can drop it, and takes nothing but days before yesterday. The day is
-- locked before its parent; see reaper/drop.go.
CREATE OR REPLACE FUNCTION outbox.drop_day(day regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT
        FROM pg_inherits
        JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent IN ('outbox.history'::regclass, 'outbox.events'::regclass)
          AND child.oid = day
          AND (regexp_match(pg_get_expr(child.relpartbound, child.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz
              < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    ) THEN
        RAISE EXCEPTION '% is no day of the history or the events before yesterday', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', day);
    EXECUTE format('DROP TABLE %s', day);
END
$$;
