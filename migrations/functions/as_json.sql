-- as_json returns the bytes as JSON, or NULL if they are not JSON: one odd row must not make the whole view unreadable.
CREATE OR REPLACE FUNCTION outbox.as_json(bytes bytea) RETURNS json
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::json;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
