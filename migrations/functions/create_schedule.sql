-- create_schedule makes a schedule in addition to those that programs declare, in the current transaction: whenever the
-- cron expression or the interval is due, a job of the kind is enqueued. The commit notifies schedulers, which compute
-- the first tick. The schedule stays until it is deleted, or until a program declares one of the same name, which
-- replaces it. The other parameters are those of outbox.enqueue; deadline is how long after its tick a job expires. The
-- function records the act in the audit, with actor, request_id and reason; see record_act.
CREATE OR REPLACE FUNCTION outbox.create_schedule(
    name         text,
    kind         text,
    cron         text       DEFAULT NULL,
    time_zone    text       DEFAULT 'UTC',
    every        interval   DEFAULT NULL,
    payload      jsonb      DEFAULT '{}',
    queue        text       DEFAULT 'default',
    priority     integer    DEFAULT 0,
    max_attempts integer    DEFAULT 25,
    timeout      interval   DEFAULT NULL,
    key          text       DEFAULT NULL,
    headers      jsonb      DEFAULT NULL,
    tenant_id    uuid       DEFAULT '00000000-0000-0000-0000-000000000001',
    deadline     interval   DEFAULT NULL,
    hold         boolean    DEFAULT false,
    missed       text       DEFAULT 'once',
    missed_limit integer    DEFAULT 10,
    max_active   integer    DEFAULT NULL,
    ordered      boolean    DEFAULT false,
    on_death     text       DEFAULT NULL,
    park_after   interval   DEFAULT NULL,
    on_lapse     text       DEFAULT NULL,
    backoff      interval[] DEFAULT NULL,
    streamed     boolean    DEFAULT false,
    actor        text       DEFAULT NULL,
    request_id   text       DEFAULT NULL,
    reason       text       DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    s        outbox.schedules;
    mistakes text;
BEGIN
    s.tenant_id := tenant_id; s.name := name; s.kind := kind; s.queue := queue; s.headers := headers; s.deadline := deadline;
    s.expression := cron; s.every := every; s.missed := missed; s.missed_limit := missed_limit;
    s.time_zone := CASE WHEN cron IS NOT NULL THEN time_zone END;
    s.timeout := timeout; s.backoff := nullif(backoff, '{}'); s.key := nullif(key, '');
    s.max_attempts := max_attempts; s.hold := nullif(hold, false); s.streamed := nullif(streamed, false); s.ordered := nullif(ordered, false);
    s.on_death := on_death; s.park_after := park_after; s.on_lapse := on_lapse;
    s.payload := convert_to(payload::text, 'UTF8'); s.content_type := 'application/json';
    s.set_by := coalesce(nullif(actor, ''), session_user);
    s.generation := 1;
    s.created_at := statement_timestamp(); s.updated_at := s.created_at; s.since := s.created_at;
    s.next_at := s.since; -- a scheduler that finds it due, with no tick since then, moves it to its first one
    s.priority := CASE WHEN priority BETWEEN -32768 AND 32767 THEN priority ELSE 0 END; -- what fits its column
    s.max_active := CASE WHEN max_active BETWEEN 2 AND 1000 THEN max_active END;
    mistakes := concat_ws('; ',
        CASE WHEN (priority BETWEEN -32768 AND 32767) IS NOT TRUE
            THEN format('priority is %s, want -32768 to 32767', coalesce(priority::text, 'NULL')) END,
        CASE WHEN max_active NOT BETWEEN 1 AND 1000 THEN format('max_active is %s, want 1 to 1000', max_active) END,
        CASE WHEN payload IS NULL THEN 'payload is NULL; pass ''null''::jsonb for a JSON null' END,
        outbox.schedule_faults(s, payload));
    IF mistakes <> '' THEN
        RAISE EXCEPTION 'outbox.create_schedule: %', mistakes USING ERRCODE = 'invalid_parameter_value';
    END IF;

    INSERT INTO outbox.schedules SELECT (s).* ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'outbox.create_schedule: there is a schedule % already', name USING ERRCODE = 'unique_violation';
    END IF;
    PERFORM pg_notify('outbox_jobs', 'schedules');
    PERFORM outbox.record_act('schedule.create', tenant_id, NULL, NULL, name, NULL, outbox.describe_schedule(s), actor, request_id, reason);
END
$$;
