-- stream_job stores the event of a change to a streamed job, in the statement that makes the change: only the holder of
-- the job's row writes it, so positions are in the order of the job's life. The row counts its events, and its row in
-- the history continues the count. Other jobs pay for the WHEN of a trigger, but for no call. Statements that start and
-- complete many jobs store the events and raise streamed themselves, and this function is not called: a claim raises
-- streamed, a settlement declares that it counts (counts_events). Statements of older builds leave the counting to this
-- function (stores_events). A payload or a result that makes an event larger than the log accepts is omitted, and its
-- size recorded. docs/guides/lifecycle.md lists events and fields, and package lifecycle reads them.
--
-- Triggers run BEFORE the change, because they store the number with it, and a later one would have to find the row
-- again (docs/adr/0020-lifecycle-by-triggers.md). When jobs are inserted the trigger runs AFTER, or COPY would not
-- store many rows at once.
--
-- It runs as the role that makes the change: a role that may store or settle a job may store events.
CREATE OR REPLACE FUNCTION outbox.stream_job() RETURNS trigger
LANGUAGE plpgsql AS $$
DECLARE
    event    text;
    previous text;
    number   integer;
    happened timestamptz := statement_timestamp();
    more     text := ''; -- fields that not every event has
    large    text := ''; -- the payload or the result
    size     text := ''; -- replaces large if the event would be larger than the log accepts
    content  json;
    silent   boolean;
    -- The statement, of an older build, stores the event; this function only counts it.
    counted  boolean := current_setting('outbox.stores_events', true) = statement_timestamp()::text;
BEGIN
    IF TG_WHEN = 'AFTER' THEN -- INSERT on jobs
        event := 'created';
        number := 1;
        IF NEW.streamed <> 1 OR NEW.status = 'running' THEN
            RAISE EXCEPTION 'job %: streamed is % of a job that is %, want 1 of one that waits', NEW.id, NEW.streamed, NEW.status
                USING ERRCODE = 'check_violation', HINT = 'streamed is how many events the log has of the job: the insert stores the first.';
        END IF;
        happened := NEW.created_at;
        more := concat(',"max_attempts":', NEW.max_attempts, CASE WHEN NEW.priority <> 0 THEN ',"priority":' || NEW.priority END,
            CASE WHEN NEW.run_at <> NEW.created_at THEN ',"run_at":' || outbox.event_time(NEW.run_at) END,
            ',"deadline":' || outbox.event_time(NEW.deadline), ',"parent":"' || NEW.parent_id || '"');
    ELSIF TG_OP = 'UPDATE' THEN -- on jobs
        previous := OLD.status;
        number := OLD.streamed + 1;
        NEW.streamed := number;
        IF counted THEN
            RETURN NEW;
        END IF;
        event := CASE
            WHEN NEW.status = 'running' THEN 'started'
            -- A waiting job that an operator changes, or makes due.
            WHEN NEW.status = OLD.status
                AND (NEW.queue <> OLD.queue OR NEW.priority <> OLD.priority OR NEW.run_at > statement_timestamp())
                THEN 'edited'
            WHEN NEW.status = OLD.status THEN 'retried'
            WHEN NEW.status = 'retrying' THEN 'retry'
            WHEN NEW.status <> 'pending' THEN NEW.status::text -- blocked, failed, dead
            WHEN OLD.status = 'running' AND NEW.run_at = OLD.run_at THEN 'interrupted'
            WHEN OLD.status = 'running' THEN 'snoozed'
            WHEN OLD.status = 'created' THEN 'released'
            WHEN OLD.status = 'blocked' THEN 'unblocked'
            ELSE 'retried' -- a dead letter
        END;
        IF NEW.status = 'running' THEN
            more := ',"worker":' || to_json(NEW.lease_owner);
        ELSE
            more := ',"run_at":' || outbox.event_time(NEW.run_at) 
                || CASE WHEN event = 'edited' OR NEW.priority <> OLD.priority THEN ',"priority":' || NEW.priority ELSE '' END;
        END IF;
    ELSE -- INSERT on history
        previous := NEW.closed_from;
        number := NEW.streamed + 1;
        NEW.streamed := number;
        IF counted THEN
            RETURN NEW;
        END IF;
        event := CASE NEW.status WHEN 'succeeded' THEN 'completed' ELSE NEW.status::text END;
        happened := NEW.finished_at;
        IF NEW.result IS NOT NULL THEN
            large := outbox.job_event_result(NEW.result);
            size := concat(',"result_bytes":', octet_length(NEW.result));
        END IF;
    END IF;

    IF previous = 'running' AND event <> 'completed' AND NEW.last_error_code IS NOT NULL THEN
        more := more || ',"error":{"code":' || to_json(NEW.last_error_code) || ',"message":' || to_json(coalesce(NEW.last_error_message, '')) || '}';
    END IF;
    IF NEW.lost_leases > 0 THEN
        more := more || ',"lost_leases":' || NEW.lost_leases;
    END IF;
    -- A dead letter may be retried with another payload.
    IF event = 'created' OR event = 'retried' AND NEW.payload <> OLD.payload THEN
        IF NEW.content_type = 'application/json' THEN
            content := outbox.as_json(NEW.payload);
        END IF;
        large := coalesce(',"payload":' || content::text,
            ',"content_type":' || to_json(NEW.content_type) || ',"payload_base64":"' || translate(encode(NEW.payload, 'base64'), E'\n', '') || '"');
        size := concat(',"content_type":', to_json(NEW.content_type), ',"payload_bytes":', octet_length(NEW.payload));
    END IF;

    -- An assignment, not PERFORM: see store_job_event.
    silent := outbox.store_job_event(NEW.id, NEW.tenant_id, event, number, previous, NEW.status, NEW.epoch, NEW.attempt,
        NEW.queue, NEW.kind, NEW.key, happened, NEW.headers, more, large, size) IS NULL;
    RETURN NEW;
END
$$;

-- Replace the triggers of earlier builds, which run for every row. They keep their names, because old and new triggers
-- together would count each event twice. This takes SHARE ROW EXCLUSIVE on both tables.
DO $$
BEGIN
    IF NOT EXISTS (
        SELECT FROM pg_trigger
        WHERE tgrelid = 'outbox.history'::regclass AND tgname = 'history_stream_closed' AND pg_get_triggerdef(oid) LIKE '%outbox.counts_events%'
    ) THEN
        CREATE OR REPLACE TRIGGER jobs_stream_created
            AFTER INSERT ON outbox.jobs
            FOR EACH ROW
            WHEN (NEW.streamed IS NOT NULL)
            EXECUTE FUNCTION outbox.stream_job();
        CREATE OR REPLACE TRIGGER jobs_stream_changed
            BEFORE UPDATE OF status ON outbox.jobs
            FOR EACH ROW
            WHEN (NEW.streamed IS NOT NULL AND NEW.streamed IS NOT DISTINCT FROM OLD.streamed)
            EXECUTE FUNCTION outbox.stream_job();
        CREATE OR REPLACE TRIGGER history_stream_closed
            BEFORE INSERT ON outbox.history
            FOR EACH ROW
            WHEN (NEW.streamed IS NOT NULL AND current_setting('outbox.counts_events', true) IS DISTINCT FROM statement_timestamp()::text)
            EXECUTE FUNCTION outbox.stream_job();
    END IF;
END
$$;
