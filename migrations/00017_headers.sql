-- A limit of the headers of an event, also for roles that insert into the log themselves.
--
-- Package outbox and outbox.publish take 64 KiB. They count other texts of the same headers, which differ in spaces and
-- escapes, and neither may store what is refused here: hence twice as much. Events that are there already may have
-- more, and stay.
--
-- Locks: ACCESS EXCLUSIVE on outbox.events and its days, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
ALTER TABLE outbox.events ADD CONSTRAINT events_headers CHECK (octet_length(headers::text) <= 131072) NOT VALID;
