-- timeline identifies the source of the positions of outbox.events: the system and its timeline, which a failover and a
-- restore change. After either, positions may be given out a second time.
CREATE OR REPLACE FUNCTION outbox.timeline() RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) FROM pg_control_system()
$$;
