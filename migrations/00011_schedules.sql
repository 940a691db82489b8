-- Schedules that operators make, besides those that programs declare.
--
-- Locks: ACCESS EXCLUSIVE on outbox.schedules, for a change of the catalog
-- A million rows: no row is read or written

-- +goose Up
-- Whose the schedule is: the actor who last set it by API, command or SQL, as in the audit; NULL for a program that
-- declares it. It is NULL in every row that is there.
ALTER TABLE outbox.schedules ADD COLUMN set_by text;
