-- take_position gives an ordered job its position in its line while its transaction commits: positions are in the order
-- of commits, and no producer waits for another. Transactions whose COMMITs overlap in time may be numbered in either
-- order; the statements of one transaction keep their order. For other jobs WHEN is false when they are inserted, and
-- nothing is queued. The function runs as its owner: a producer need not be allowed to change jobs.
--
-- The row is found by its id, whatever the statistics are: a session may keep the plan that it made when there was
-- hardly a job, and a transaction with thousands of jobs must not read all of them for each.
CREATE OR REPLACE FUNCTION outbox.take_position() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
BEGIN
    UPDATE outbox.jobs SET line_position = nextval('outbox.commit_order') WHERE id = NEW.id;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION outbox.take_position() FROM PUBLIC; -- it runs as its owner

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox.jobs'::regclass AND tgname = 'jobs_take_position') THEN
        CREATE CONSTRAINT TRIGGER jobs_take_position
            AFTER INSERT ON outbox.jobs
            DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW
            WHEN (NEW.ordered AND NEW.key IS NOT NULL AND NEW.line_position IS NULL)
            EXECUTE FUNCTION outbox.take_position();
    END IF;
END
$$;
