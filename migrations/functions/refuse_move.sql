-- The database enforces the state machine. Postgres evaluates a trigger's WHEN without calling the function, so a claim
-- pays for a few comparisons and no call; the function decides about the rarer moves. WHEN has no more conditions
-- because, like a CHECK, it is parsed again for every statement that fires the trigger (00001_tables.sql). A test
-- compares docs/reference/states.md, outbox/status.go and this file.
CREATE OR REPLACE FUNCTION outbox.refuse_move() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
    IF TG_TABLE_NAME = 'jobs' AND NEW.epoch >= OLD.epoch AND (
        -- Every move into or out of running raises the epoch, so that (id, epoch) alone is the fence.
        (OLD.status <> 'running' AND NEW.status <> 'running') OR NEW.epoch > OLD.epoch
    ) AND (
        (OLD.status = 'pending'  AND NEW.status IN ('running', 'blocked'))
        OR (OLD.status = 'running'  AND NEW.status IN ('retrying', 'pending', 'failed', 'dead'))
        OR (OLD.status = 'retrying' AND NEW.status IN ('running', 'blocked', 'dead'))
        OR (OLD.status = 'created'  AND NEW.status = 'pending')
        OR (OLD.status = 'blocked'  AND NEW.status = 'pending')
        OR (OLD.status = 'failed'   AND NEW.status = 'pending')
        OR (OLD.status = 'dead'     AND NEW.status = 'pending')
    ) THEN
        RETURN NEW;
    END IF;
    IF NEW.status IS NOT DISTINCT FROM OLD.status THEN
        RAISE EXCEPTION 'job %: epoch may not move from % to %', OLD.id, OLD.epoch, NEW.epoch
            USING ERRCODE = 'check_violation', HINT = 'The epoch is the fencing token: it only ever rises.';
    END IF;
    RAISE EXCEPTION 'job %: illegal move from % (epoch %) to % (epoch %)', OLD.id, OLD.status, OLD.epoch, NEW.status, NEW.epoch
        USING ERRCODE = 'check_violation', HINT = 'docs/reference/states.md lists the legal moves; entering and leaving running raises the epoch.';
END
$$;

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox.jobs'::regclass AND tgname = 'jobs_legal_move') THEN
        CREATE TRIGGER jobs_legal_move
            BEFORE UPDATE OF status, epoch ON outbox.jobs
            FOR EACH ROW
            WHEN (
                NEW.epoch < OLD.epoch
                OR (OLD.status <> NEW.status AND NOT (OLD.status = 'pending' AND NEW.status = 'running' AND NEW.epoch > OLD.epoch)))
            EXECUTE FUNCTION outbox.refuse_move();
    END IF;
END
$$;

-- Closed stays closed.
DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox.history'::regclass AND tgname = 'history_legal_move') THEN
        CREATE TRIGGER history_legal_move
            BEFORE UPDATE OF status, epoch ON outbox.history
            FOR EACH ROW
            WHEN (NEW.epoch < OLD.epoch OR NEW.status <> OLD.status)
            EXECUTE FUNCTION outbox.refuse_move();
    END IF;
END
$$;
