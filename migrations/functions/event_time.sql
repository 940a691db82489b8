-- event_time returns a time as a JSON string, as short as possible.
CREATE OR REPLACE FUNCTION outbox.event_time(moment timestamptz) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
RETURN replace(to_json(moment)::text, '+00:00"', 'Z"');
