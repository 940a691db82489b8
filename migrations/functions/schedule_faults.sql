-- schedule_faults returns every mistake in a schedule to be stored, in the words of package schedule and of
-- outbox.enqueue; NULL if there is none. It enqueues a job of the schedule once and rolls that back, so that the rules
-- of jobs are in one place. payload is the schedule's new payload; NULL means that it was stored before.
CREATE OR REPLACE FUNCTION outbox.schedule_faults(s outbox.schedules, payload jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    of_job   text;
    of_times text;
BEGIN
    of_times := CASE
        WHEN num_nonnulls(s.expression, s.every) <> 1 THEN 'cron and every: a schedule has one of them'
        WHEN s.expression IS NOT NULL THEN concat_ws('; ',
            CASE WHEN NOT EXISTS (SELECT FROM pg_timezone_names WHERE name = s.time_zone) THEN
                format('zone is %s, want the name of an IANA time zone like "Europe/Berlin" or "UTC"',
                    coalesce(to_json(s.time_zone)::text, '""')) END,
            outbox.cron_faults(s.expression))
        -- A Go duration has no months, and would count one as 30 days.
        WHEN (extract(year FROM s.every), extract(month FROM s.every)) <> (0, 0) THEN
            format('interval is %s, want days and times: for months, use the cron expression @monthly', s.every)
        WHEN s.every NOT BETWEEN '1 second' AND '3650 days' THEN format('interval is %s, want 1s to 10 years', s.every)
        WHEN extract(microseconds FROM s.every)::bigint % 1000 <> 0 THEN format('interval is %s, want whole milliseconds', s.every) END;
    BEGIN
        PERFORM outbox.enqueue(kind => s.kind, payload => coalesce(payload, '{}'), queue => s.queue,
            priority => s.priority, max_attempts => s.max_attempts,
            timeout => s.timeout, backoff => s.backoff, key => s.key, headers => s.headers, tenant_id => s.tenant_id, notify => false, hold => true,
            max_active => s.max_active, ordered => coalesce(s.ordered, false), on_death => s.on_death,
            park_after => s.park_after, on_lapse => s.on_lapse);
        RAISE EXCEPTION USING ERRCODE = 'OB001', MESSAGE = 'it was only to be checked';
    EXCEPTION
        WHEN SQLSTATE 'OB001' THEN NULL;
        WHEN invalid_parameter_value THEN of_job := replace(SQLERRM, 'outbox.enqueue: ', '');
    END;
    RETURN nullif(concat_ws('; ', nullif(of_times, ''),
        CASE WHEN (s.name ~ '^[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}$') IS NOT TRUE THEN
            format('name %s must be 1 to 128 letters, digits, or _ . : / -, first a letter or digit', quote_nullable(left(s.name, 200))) END,
        CASE WHEN (s.missed IN ('once', 'skip', 'all')) IS NOT TRUE THEN format('missed is %s, want once, skip or all', quote_nullable(s.missed)) END,
        CASE WHEN (s.missed_limit BETWEEN 1 AND 1000) IS NOT TRUE
            THEN format('missed_limit is %s, want 1 to 1000', coalesce(s.missed_limit::text, 'NULL')) END,
        CASE WHEN s.deadline NOT BETWEEN '1 microsecond' AND '36500 days' THEN format('deadline is %s, want up to 100 years', s.deadline) END,
        CASE WHEN s.headers ?| '{schedule,scheduled_for}'
            THEN 'headers have schedule or scheduled_for, which every job of a schedule carries already' END,
        -- Counted as outbox.EnqueueMany does, which writes < as \u003c; a tick adds its own headers, and those of a
        -- trace.
        CASE WHEN octet_length(s.headers::text) <= 65536 AND octet_length(regexp_replace(s.headers::text, '[<>&]', '\\u003c', 'g')) > 64512 THEN
            format('headers are %s bytes as JSON, want at most 64512: each tick adds its own',
                octet_length(regexp_replace(s.headers::text, '[<>&]', '\\u003c', 'g'))) END,
        of_job), '');
END
$$;
