-- timeline names what positions of outbox.events come from: the system, and its timeline,
-- which a failover and a restore change. Both may give out positions a second time.
--
-- It is one expression, and as volatile as what it calls: so the server writes it into the
-- statement that calls it, and plans it once a session. With a FROM, or STABLE, it would be
-- parsed and planned anew each time, and a relay asks before it reads and when it stores.
CREATE OR REPLACE FUNCTION outbox.timeline() RETURNS text
LANGUAGE sql VOLATILE
RETURN (pg_control_system()).system_identifier || '/' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8);
