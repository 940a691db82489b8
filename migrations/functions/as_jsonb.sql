-- as_jsonb returns the bytes as jsonb, or NULL if that is impossible: if they are not JSON, or if they have a number or
-- a character, such as \u0000, that jsonb cannot hold. See as_json.
CREATE OR REPLACE FUNCTION outbox.as_jsonb(bytes bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
