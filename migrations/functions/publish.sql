-- publish stores an event in the current transaction and returns its id; relays publish it to their sinks once the
-- transaction has committed. Events of a key are published in the order of the transactions that held a lock on what
-- the key stands for, such as a row that they change. Where there is no such row, serial takes a lock until the
-- transaction ends. notify => false leaves the wake-up to the relays' poll.
CREATE OR REPLACE FUNCTION outbox.publish(
    topic        text,
    payload      jsonb,
    key          text    DEFAULT NULL,
    headers      jsonb   DEFAULT NULL,
    content_type text    DEFAULT 'application/json',
    tenant_id    uuid    DEFAULT '00000000-0000-0000-0000-000000000001',
    id           uuid    DEFAULT NULL,
    serial       boolean DEFAULT false,
    notify       boolean DEFAULT true
) RETURNS uuid
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    name_rule CONSTANT text := '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}$';
    bytes     bytea := convert_to(payload::text, 'UTF8');
    mistakes  text;
    new_id    uuid  := coalesce(id, outbox.uuid_v7());
BEGIN
    -- The rules of package outbox: every mistake is reported at once.
    mistakes := concat_ws('; ',
        CASE WHEN (topic ~ name_rule) IS NOT TRUE THEN
            format('topic %s must be 1 to 128 letters, digits, or _ . : / -, first a letter or digit', quote_nullable(left(topic, 200))) END,
        CASE WHEN payload IS NULL THEN 'payload is NULL; pass ''null''::jsonb for a JSON null' END,
        CASE WHEN octet_length(bytes) > 4194304 THEN
            format('payload is %s bytes, want at most 4194304; store large data elsewhere and publish a reference', octet_length(bytes)) END,
        CASE WHEN octet_length(key) > 512 THEN format('key is %s bytes long, want at most 512', octet_length(key)) END,
        CASE WHEN jsonb_typeof(headers) <> 'object' OR jsonb_path_exists(headers, 'strict $.* ? (@.type() != "string")', '{}', true) THEN
            'headers must be a JSON object of strings' END,
        CASE WHEN jsonb_typeof(headers) = 'object' AND headers ? '' THEN 'headers have one whose name is empty' END,
        CASE WHEN octet_length(headers::text) > 65536 THEN
            format('headers are %s bytes as JSON, want at most 65536', octet_length(headers::text)) END,
        CASE WHEN (octet_length(content_type) BETWEEN 1 AND 128) IS NOT TRUE THEN
            format('content_type is %s bytes long, want 1 to 128', coalesce(octet_length(content_type)::text, 'NULL')) END,
        CASE WHEN tenant_id IS NULL THEN 'tenant_id is NULL' END,
        CASE WHEN serial AND coalesce(key, '') = '' THEN 'serial is set, but key is not' END);
    IF mistakes <> '' THEN
        RAISE EXCEPTION 'outbox.publish: %', mistakes USING ERRCODE = 'invalid_parameter_value';
    END IF;

    IF serial THEN
        PERFORM pg_advisory_xact_lock(hashtextextended(key, hashtextextended(tenant_id::text, 0)));
    END IF;
    INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload, headers)
    VALUES (new_id, tenant_id, topic, nullif(key, ''), content_type, bytes, headers);
    IF notify THEN
        PERFORM pg_notify('outbox_events', '');
    END IF;
    RETURN new_id;
END
$$;
