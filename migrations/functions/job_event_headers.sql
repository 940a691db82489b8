-- job_event_headers is what the message of an event of a streamed job has of the job's headers.
CREATE OR REPLACE FUNCTION outbox.job_event_headers(headers jsonb) RETURNS jsonb
LANGUAGE sql STABLE PARALLEL SAFE
RETURN CASE WHEN headers IS NOT NULL THEN nullif(jsonb_strip_nulls(jsonb_build_object(
    'traceparent', headers -> 'traceparent', 'tracestate', headers -> 'tracestate', 'correlation-id', headers -> 'correlation-id')), '{}') END;
