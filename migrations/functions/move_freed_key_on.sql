-- move_freed_key_on promotes the jobs that waited behind a job that was taken away, or that could not be promoted while
-- the transaction had locked them. It runs while the transaction commits, so that claims find the key's row locked no
-- longer than that, however long the transaction was. It does not wait for another holder of the key, because a
-- producer may have replaced jobs of several keys, in any order; the sweep does the rest.
--
-- A key of which a transaction has freed several jobs in a row is moved on once for up to sixteen of them. Their rows
-- are found by their ids, because a search of the table would visit every row that was written since the oldest
-- snapshot that is held.
--
-- The sweep also repeats a promotion that the database refuses, because of a trigger on the promoted job, say: the
-- transaction that commits here has nothing to do with that job, and does not fail because of it.
--
-- Rows are found by their indexes, as promote_keys requires, in whatever session commits.
CREATE OR REPLACE FUNCTION outbox.move_freed_key_on() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off AS $$
BEGIN
    DELETE FROM outbox.freed_keys
    WHERE id BETWEEN NEW.id AND NEW.id + 15
      AND (tenant_id, queue, key) = (NEW.tenant_id, NEW.queue, NEW.key);
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    BEGIN
        PERFORM FROM outbox.promote_keys(ARRAY[NEW.tenant_id], ARRAY[NEW.queue::text], ARRAY[NEW.key::text], ARRAY[1000], true);
        IF FOUND THEN
            PERFORM pg_notify('outbox_jobs', '');
        END IF;
    EXCEPTION WHEN OTHERS THEN
        NULL;
    END;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION outbox.move_freed_key_on() FROM PUBLIC; -- it runs as its owner

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox.freed_keys'::regclass AND tgname = 'freed_keys_move_on') THEN
        CREATE CONSTRAINT TRIGGER freed_keys_move_on
            AFTER INSERT ON outbox.freed_keys
            DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW
            EXECUTE FUNCTION outbox.move_freed_key_on();
    END IF;
END
$$;
