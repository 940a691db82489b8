-- ensure_history creates the partitions of yesterday to days_ahead days from
-- now (UTC) and returns how many it made. A table is made apart and then
-- attached, which takes SHARE UPDATE EXCLUSIVE on outbox.history: settlements go
-- on meanwhile (CREATE TABLE ... PARTITION OF would stop them). It runs as its
-- owner, because only the owner of outbox.history can attach to it.
CREATE OR REPLACE FUNCTION outbox.ensure_history(days_ahead integer) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    first_day date := (now() AT TIME ZONE 'UTC')::date - 1;
    day       date;
    name      text;
    made      integer := 0;
    owners    text    := CASE WHEN to_regrole('outbox_owner') IS NULL THEN '' ELSE 'outbox_owner, ' END || 'CURRENT_USER';
BEGIN
    IF (days_ahead BETWEEN 0 AND 400) IS NOT TRUE THEN
        RAISE EXCEPTION 'days_ahead is %, want 0 to 400', coalesce(days_ahead::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR i IN 0 .. days_ahead + 1 LOOP
        day  := first_day + i;
        name := 'history_' || to_char(day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('outbox.' || name) IS NOT NULL;
        -- Two processes that start together make it once.
        PERFORM pg_advisory_xact_lock(hashtextextended('outbox.ensure_history', 0));
        CONTINUE WHEN to_regclass('outbox.' || name) IS NOT NULL;
        EXECUTE format('CREATE TABLE outbox.%I (LIKE outbox.history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
        -- What a role may see of the history (secure.sql) it sees through the
        -- parent; of a day by itself only the owner, as a backup does.
        EXECUTE format('ALTER TABLE outbox.%I ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY owner ON outbox.%I TO %s USING (true) WITH CHECK (true)', name, owners);
        EXECUTE format('ALTER TABLE outbox.history ATTACH PARTITION outbox.%I FOR VALUES FROM (%L) TO (%L)',
            name, day::text || ' 00:00:00+00', (day + 1)::text || ' 00:00:00+00');
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;
