-- ensure_days creates the partitions of the history and of the events, from yesterday to days_ahead days from now
-- (UTC), and returns how many it created. It creates a table separately and then attaches it, which takes SHARE UPDATE
-- EXCLUSIVE on the parent: settlements and producers continue meanwhile (CREATE TABLE ... PARTITION OF would stop
-- them). It runs as its owner, because only the owner of a table can attach to it.
CREATE OR REPLACE FUNCTION outbox.ensure_days(days_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first_day date := (now() AT TIME ZONE 'UTC')::date - 1;
    parent    text;
    day       date;
    name      text;
    made      integer := 0;
    owners    text    := CASE WHEN to_regrole('outbox_owner') IS NULL THEN '' ELSE 'outbox_owner, ' END || 'CURRENT_USER';
BEGIN
    IF (days_ahead BETWEEN 0 AND 400) IS NOT TRUE THEN
        RAISE EXCEPTION 'days_ahead is %, want 0 to 400', coalesce(days_ahead::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR parent, day IN
        SELECT tab, first_day + i FROM unnest('{history,events}'::text[]) AS tab, generate_series(0, days_ahead + 1) AS i
    LOOP
        name := parent || to_char(day, '_YYYYMMDD');
        CONTINUE WHEN to_regclass('outbox.' || name) IS NOT NULL;
        -- Two processes that start together create it once.
        PERFORM pg_advisory_xact_lock(hashtextextended('outbox.ensure_days', 0));
        CONTINUE WHEN to_regclass('outbox.' || name) IS NOT NULL;
        EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.%I INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name, parent);
        -- A role sees rows of the parent (secure.sql) through the parent; a day on its own is visible only to the
        -- owner, as for a backup.
        EXECUTE format('ALTER TABLE outbox.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY owner ON outbox.%I TO %s USING (true) WITH CHECK (true)', name, owners);
        IF parent = 'history' THEN
            EXECUTE format('ALTER TABLE outbox.%I REPLICA IDENTITY FULL', name);
        END IF;
        EXECUTE format('ALTER TABLE outbox.%I ATTACH PARTITION outbox.%I FOR VALUES FROM (%L) TO (%L)',
            parent, name, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
REVOKE ALL ON FUNCTION outbox.ensure_days(integer) FROM PUBLIC; -- it runs as its owner

-- Rows are deleted from these tables, which have no unique index to identify a row. If a publication includes them, as
-- one FOR ALL TABLES does, the server refuses the deletion unless the whole row identifies it. Then the row is logged
-- whole, but only with wal_level = logical. The history itself counts if publish_via_partition_root is on. Days of
-- events are only dropped.
DO $$
DECLARE
    name regclass;
BEGIN
    FOR name IN
        SELECT oid
        FROM pg_class
        WHERE relnamespace = 'outbox'::regnamespace AND relreplident = 'd' AND (relname IN ('history', 'measures', 'measures_hours')
            AND relkind IN ('r', 'p') OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = 'outbox.history'::regclass))
        ORDER BY relispartition DESC, relname
    LOOP
        EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', name);
    END LOOP;
END
$$;
