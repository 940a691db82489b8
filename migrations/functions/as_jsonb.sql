-- as_jsonb is the bytes as jsonb, or NULL if they cannot be that: if they are no JSON, and
-- also if they are JSON with a number or a character, such as \u0000, that jsonb does not
-- have. See as_json.
CREATE OR REPLACE FUNCTION outbox.as_jsonb(bytes bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
BEGIN
    RETURN convert_from(bytes, 'UTF8')::jsonb;
EXCEPTION WHEN OTHERS THEN
    RETURN NULL;
END
$$;
