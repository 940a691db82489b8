-- chain_audit links an entry while its transaction commits. One transaction links at a
-- time: from its first link on until it has committed, it has the lock below.
--
-- Why nobody waits in a circle. A transaction that has the lock has done all that it
-- was sent to do and waits for none that may wait for the lock: the other triggers of
-- this schema that run at commit write rows of their own transaction or skip what is
-- locked, and NOTIFY's lock is taken after all triggers. Two bulk acts that commit at
-- once commit one after the other, whatever rows each has locked: the one that waits
-- for the lock holds nothing that the other one still needs. A transaction that sets
-- CONSTRAINTS ALL IMMEDIATE, or has deferred triggers that wait for rows of other acts,
-- gives that up, and Postgres then ends one of the two as a deadlock.
--
-- Why the last link is the one that is seen. A VOLATILE function takes a snapshot for
-- each of its statements, so the SELECT behind the lock sees what the transaction
-- committed that had it before; which gives its locks up only after it has become
-- visible. Lock and SELECT must stay two statements. Under REPEATABLE READ there is one
-- snapshot only; if somebody linked since, the seq is taken, and ON CONFLICT makes
-- that a serialization failure, which such transactions have to expect anyway.
--
-- A prepared transaction keeps the lock until it is decided, because the next link
-- depends on that: acts wait meanwhile, for as long as their own timeouts say.
--
-- It runs as its owner: acting roles may not write the chain otherwise. No sequential
-- scan, because the plan is made when the chain is short and kept while it grows.
CREATE OR REPLACE FUNCTION outbox.chain_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    last outbox.audit_chain;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.audit_chain', 0));
    SELECT * INTO last FROM outbox.audit_chain ORDER BY seq DESC LIMIT 1;
    IF NOT FOUND THEN -- somebody has emptied it: acts go on, and a check against a noted head finds that
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
