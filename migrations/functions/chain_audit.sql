-- chain_audit links an entry while its transaction commits. One transaction links at a time: it holds the lock below
-- from its first link until it has committed.
--
-- Why there is no deadlock. A transaction that has the lock has executed all its statements, and waits for no
-- transaction that may wait for the lock: the other triggers of this schema that run at commit write rows of their own
-- transaction or skip locked rows, and NOTIFY's lock is taken after all triggers. Two bulk acts that commit at the same
-- time commit one after the other, whatever rows each has locked: the one that waits for the lock holds nothing that
-- the other still needs. A transaction that sets CONSTRAINTS ALL IMMEDIATE, or has deferred triggers that wait for rows
-- of other acts, loses this property, and Postgres then ends one of the two as a deadlock.
--
-- Why it sees the last link. A VOLATILE function takes a snapshot for each of its statements, so the SELECT after the
-- lock sees what the previous holder of the lock committed: that transaction releases its locks only after it has
-- become visible. The lock and the SELECT must stay two statements. Under REPEATABLE READ there is only one snapshot;
-- if another transaction has linked since, the seq is taken, and ON CONFLICT turns that into a serialization failure,
-- which such transactions must expect anyway.
--
-- A prepared transaction keeps the lock until it is committed or rolled back, because the next link depends on that:
-- acts wait meanwhile, for as long as their own timeouts allow.
--
-- It runs as its owner, because acting roles may not write the chain otherwise. It allows no sequential scan, because
-- the plan is made while the chain is short and kept while the chain grows.
CREATE OR REPLACE FUNCTION outbox.chain_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    last outbox.audit_chain;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.audit_chain', 0));
    SELECT * INTO last FROM outbox.audit_chain ORDER BY seq DESC LIMIT 1;
    IF NOT FOUND THEN -- the chain was emptied: acts continue, and a check against a noted head finds that
        INSERT INTO outbox.audit_chain (seq, hash) VALUES (0, decode(repeat('00', 32), 'hex')) RETURNING * INTO last;
    END IF;
    INSERT INTO outbox.audit_chain (seq, audit_id, hash)
    VALUES (last.seq + 1, NEW.id, outbox.audit_hash(last.hash, last.seq + 1, NEW))
    ON CONFLICT (seq) DO NOTHING;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'link % of outbox.audit_chain was taken meanwhile', last.seq + 1 USING ERRCODE = 'serialization_failure';
    END IF;
    RETURN NULL;
END
$$;
REVOKE ALL ON FUNCTION outbox.chain_audit() FROM PUBLIC; -- it runs as its owner

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = 'outbox.audit'::regclass AND tgname = 'audit_is_chained') THEN
        CREATE CONSTRAINT TRIGGER audit_is_chained
            AFTER INSERT ON outbox.audit
            DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW
            EXECUTE FUNCTION outbox.chain_audit();
    END IF;
END
$$;
