-- job_event_result returns the field of an event that has the result of a job.
CREATE OR REPLACE FUNCTION outbox.job_event_result(result bytea) RETURNS text
LANGUAGE plpgsql STABLE STRICT AS $$
BEGIN
    RETURN coalesce(',"result":' || outbox.as_json(result)::text, ',"result_base64":"' || translate(encode(result, 'base64'), E'\n', '') || '"');
END
$$;
