-- store_death_hook stores the hook's job: it has the tenant, queue, priority and headers of the job that died, and a
-- payload in the form of outbox.Ended. A payload that is not JSON is passed on unchanged. One that is larger than
-- producers may store is omitted: it must not keep the reaper from the other jobs.
CREATE OR REPLACE FUNCTION outbox.store_death_hook() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    hook  text;
    args  json;
    bytes bytea;
BEGIN
    SELECT death_hooks.hook_kind INTO hook FROM outbox.death_hooks WHERE death_hooks.kind = NEW.kind;
    IF NOT FOUND THEN
        RETURN NEW;
    END IF;
    IF octet_length(NEW.payload) <= 16 * 1024 * 1024 THEN
        bytes := NEW.payload;
    END IF;
    IF NEW.content_type = 'application/json' THEN
        args := outbox.as_json(bytes);
    END IF;
    INSERT INTO outbox.jobs (id, tenant_id, queue, kind, priority, payload, headers, parent_id)
    VALUES (outbox.uuid_v7(), NEW.tenant_id, NEW.queue, hook, NEW.priority, convert_to(json_build_object(
        'id', NEW.id, 'kind', NEW.kind, 'queue', NEW.queue, 'status', NEW.status, 'attempt', NEW.attempt, 'epoch', NEW.epoch,
        'error_code', coalesce(NEW.last_error_code, ''), 'error_message', coalesce(NEW.last_error_message, ''),
        'args', args, 'payload', CASE WHEN args IS NULL THEN encode(bytes, 'base64') END)::text, 'UTF8'),
        -- No schedule enqueued the hook: engine.InheritedHeaders.
        CASE WHEN NEW.headers ?& '{schedule,scheduled_for}' THEN nullif(NEW.headers - '{schedule,scheduled_for}'::text[], '{}') ELSE NEW.headers END,
        NEW.id);
    PERFORM pg_notify('outbox_jobs', '');
    RETURN NEW;
END
$$;

-- Before the update rather than after it: so a claim, for which WHEN is false, does not look at the row a second time.
-- The row is locked by then, and the legality of the move is already checked: triggers fire in the order of their
-- names.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox.jobs'::regclass AND tgname = 'jobs_store_death_hook') THEN
        CREATE TRIGGER jobs_store_death_hook
            BEFORE UPDATE OF status ON outbox.jobs
            FOR EACH ROW
            WHEN (NEW.status IN ('failed', 'dead') AND NEW.status <> OLD.status)
            EXECUTE FUNCTION outbox.store_death_hook();
    END IF;
END
$$;
