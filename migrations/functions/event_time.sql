-- event_time is a time as a JSON string, as short as it can be said.
CREATE OR REPLACE FUNCTION outbox.event_time(moment timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN replace(to_json(moment)::text, '+00:00"', 'Z"');
