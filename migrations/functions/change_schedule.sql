-- change_schedule changes a schedule that was made by the API, a command or SQL, and returns whether there is one of
-- the name. A NULL keeps a value; '' and 0 and '{}' set the default again. Another timing counts from now on,
-- everything else from the next tick on. A schedule that a program declares can only be changed in the program's code.
--
-- The lock on the row makes it wait for a firing that is under way. A due tick that no scheduler has begun to fire must
-- not get lost, and only schedulers can compute which ticks there were: then another timing is refused. A timing that
-- no scheduler has read yet is replaced, without ticks. The function records the act in the audit, with actor,
-- request_id and reason; see record_act.
CREATE OR REPLACE FUNCTION outbox.change_schedule(
    name         text,
    kind         text       DEFAULT NULL,
    cron         text       DEFAULT NULL,
    time_zone    text       DEFAULT NULL,
    every        interval   DEFAULT NULL,
    payload      jsonb      DEFAULT NULL,
    queue        text       DEFAULT NULL,
    priority     integer    DEFAULT NULL,
    max_attempts integer    DEFAULT NULL,
    timeout      interval   DEFAULT NULL,
    key          text       DEFAULT NULL,
    headers      jsonb      DEFAULT NULL,
    tenant_id    uuid       DEFAULT '00000000-0000-0000-0000-000000000001',
    deadline     interval   DEFAULT NULL,
    hold         boolean    DEFAULT NULL,
    missed       text       DEFAULT NULL,
    missed_limit integer    DEFAULT NULL,
    max_active   integer    DEFAULT NULL,
    ordered      boolean    DEFAULT NULL,
    on_death     text       DEFAULT NULL,
    park_after   interval   DEFAULT NULL,
    on_lapse     text       DEFAULT NULL,
    backoff      interval[] DEFAULT NULL,
    streamed     boolean    DEFAULT NULL,
    actor        text       DEFAULT NULL,
    request_id   text       DEFAULT NULL,
    reason       text       DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    s        outbox.schedules;
    stood    outbox.schedules;
    mistakes text;
BEGIN
    SELECT * INTO stood
    FROM outbox.schedules
    WHERE schedules.tenant_id = change_schedule.tenant_id AND schedules.name = change_schedule.name
    FOR UPDATE;
    IF NOT FOUND THEN
        RETURN false;
    ELSIF stood.set_by IS NULL THEN
        RAISE EXCEPTION 'outbox.change_schedule: a program declares % in its code (app.Config.Schedules): change it there', name
            USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    s := stood;
    IF cron IS NOT NULL OR every IS NOT NULL THEN
        s.expression := cron; s.every := every;
        s.time_zone := CASE WHEN cron IS NOT NULL THEN coalesce(time_zone, stood.time_zone, 'UTC') END;
    ELSIF stood.every IS NULL THEN
        s.time_zone := coalesce(time_zone, stood.time_zone);
    END IF;
    s.kind := coalesce(kind, s.kind);
    s.queue := coalesce(nullif(coalesce(queue, s.queue), ''), 'default');
    s.headers := nullif(coalesce(headers, s.headers), '{}');
    s.missed := coalesce(missed, s.missed); s.missed_limit := coalesce(missed_limit, s.missed_limit);
    s.max_attempts := coalesce(nullif(coalesce(max_attempts, s.max_attempts), 0), 25);
    s.timeout := nullif(coalesce(timeout, s.timeout), '0'); s.deadline := nullif(coalesce(deadline, s.deadline), '0');
    s.backoff := nullif(coalesce(backoff, s.backoff), '{}'); s.key := nullif(coalesce(key, s.key), '');
    s.hold := nullif(coalesce(hold, s.hold), false); s.streamed := nullif(coalesce(streamed, s.streamed), false);
    s.ordered := nullif(coalesce(ordered, s.ordered), false);
    s.on_death := nullif(coalesce(on_death, s.on_death), ''); s.on_lapse := nullif(coalesce(on_lapse, s.on_lapse), '');
    s.park_after := nullif(coalesce(park_after, s.park_after), '0');
    IF payload IS NOT NULL THEN
        s.payload := convert_to(payload::text, 'UTF8'); s.content_type := 'application/json';
    END IF;
    s.priority := CASE WHEN priority BETWEEN -32768 AND 32767 THEN priority ELSE s.priority END;
    s.max_active := CASE WHEN max_active BETWEEN 2 AND 1000 THEN max_active WHEN max_active IS NULL THEN s.max_active END;
    mistakes := concat_ws('; ',
        CASE WHEN time_zone IS NOT NULL AND s.time_zone IS NULL THEN 'zone is set, and a schedule of an interval has none' END,
        CASE WHEN priority NOT BETWEEN -32768 AND 32767 THEN format('priority is %s, want -32768 to 32767', priority) END,
        CASE WHEN max_active NOT BETWEEN 0 AND 1000 THEN format('max_active is %s, want 1 to 1000', max_active) END,
        outbox.schedule_faults(s, payload));
    IF mistakes <> '' THEN
        RAISE EXCEPTION 'outbox.change_schedule: %', mistakes USING ERRCODE = 'invalid_parameter_value';
    ELSIF s IS NOT DISTINCT FROM stood THEN
        RETURN true;
    END IF;

    IF (s.expression, s.time_zone, s.every) IS DISTINCT FROM (stood.expression, stood.time_zone, stood.every) THEN
        -- A next_at that equals since means that no scheduler has read this timing yet: it has no tick, and possibly no
        -- scheduler will compute one.
        IF stood.paused_at IS NULL AND stood.next_at <= clock_timestamp() AND stood.next_at <> stood.since THEN
            RAISE EXCEPTION 'outbox.change_schedule: % is due since % and no scheduler has fired it yet: try again, or pause it first', name, stood.next_at
                USING ERRCODE = 'object_in_use';
        END IF;
        s.since := clock_timestamp();
        s.next_at := s.since; -- as in create_schedule
    END IF;
    s.generation := s.generation + 1; s.updated_at := statement_timestamp();
    s.set_by := coalesce(nullif(actor, ''), session_user);
    UPDATE outbox.schedules
    SET (expression, time_zone, every, missed, missed_limit, kind, queue, priority, max_attempts, timeout, backoff, key, payload,
            content_type, headers, since, next_at, updated_at, deadline, hold, max_active, ordered, on_death, park_after, on_lapse,
            streamed, generation, set_by)
        = (s.expression, s.time_zone, s.every, s.missed, s.missed_limit, s.kind, s.queue, s.priority, s.max_attempts,
            s.timeout, s.backoff, s.key, s.payload, s.content_type, s.headers, s.since, s.next_at,
            s.updated_at, s.deadline, s.hold, s.max_active, s.ordered, s.on_death, s.park_after, s.on_lapse, s.streamed,
            s.generation, s.set_by)
    WHERE schedules.tenant_id = change_schedule.tenant_id AND schedules.name = change_schedule.name;
    PERFORM pg_notify('outbox_jobs', 'schedules');
    PERFORM outbox.record_act('schedule.change', tenant_id, NULL, NULL, name, outbox.describe_schedule(stood),
        outbox.describe_schedule(s), actor, request_id, reason);
    RETURN true;
END
$$;
