-- delete_schedule deletes a schedule, and returns whether there was one of the name; jobs that it has enqueued stay. A
-- program that declares the schedule recreates it at its next start. The function waits for a firing that is under way.
-- It records the act in the audit, with actor, request_id and reason; see record_act.
CREATE OR REPLACE FUNCTION outbox.delete_schedule(
    name       text,
    tenant_id  uuid DEFAULT '00000000-0000-0000-0000-000000000001',
    actor      text DEFAULT NULL,
    request_id text DEFAULT NULL,
    reason     text DEFAULT NULL
) RETURNS boolean
LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    was_paused boolean;
BEGIN
    DELETE FROM outbox.schedules
    WHERE schedules.tenant_id = delete_schedule.tenant_id AND schedules.name = delete_schedule.name
    RETURNING schedules.paused_at IS NOT NULL INTO was_paused;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM outbox.record_act('schedule.delete', tenant_id, NULL, NULL, name, jsonb_build_object('paused', was_paused),
        NULL, actor, request_id, reason);
    RETURN true;
END
$$;
