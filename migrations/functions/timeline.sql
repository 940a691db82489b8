-- timeline identifies the source of the positions of outbox.events: the system and its timeline, which a failover and a
-- restore change. After either, positions may be given out a second time.
--
-- It is one expression, and as volatile as the functions that it calls, so that the server inlines it into the calling
-- statement and plans it once a session. With a FROM, or STABLE, it would be parsed and planned each time, and a relay
-- asks before each read and with each store.
CREATE OR REPLACE FUNCTION outbox.timeline() RETURNS text
LANGUAGE sql VOLATILE
RETURN (pg_control_system()).system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
