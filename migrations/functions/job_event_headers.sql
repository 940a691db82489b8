-- job_event_headers returns those of a streamed job's headers that the message of an event carries. It omits a value
-- that is longer than 1 KiB or has a control character: the job has it, and brokers or receivers would refuse the
-- event.
CREATE OR REPLACE FUNCTION outbox.job_event_headers(headers jsonb) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN headers IS NOT NULL THEN nullif(jsonb_strip_nulls(jsonb_build_object(
    'traceparent', CASE WHEN octet_length(headers ->> 'traceparent') <= 1024 THEN substring(headers ->> 'traceparent' FROM '^[^\x01-\x1f\x7f]*$') END,
    'tracestate', CASE WHEN octet_length(headers ->> 'tracestate') <= 1024 THEN substring(headers ->> 'tracestate' FROM '^[^\x01-\x1f\x7f]*$') END,
    'correlation-id', CASE WHEN octet_length(headers ->> 'correlation-id') <= 1024
        THEN substring(headers ->> 'correlation-id' FROM '^[^\x01-\x1f\x7f]*$') END)), '{}') END;
