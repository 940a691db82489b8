-- A chain over outbox.audit, by which a row is found that was changed, removed, slipped
-- in or moved: each link is the SHA-256 of the link before it and a row. How to check
-- it is in docs/operations.md, why it is so in docs/adr/0012-audit-chain.md.
--
-- Links what is there already, oldest first: about half a minute for a million rows,
-- for which acts of operators wait. Jobs do not. Reapers of an older build do not trim the audit
-- any more, and complain that they may not.

-- +goose Up

-- The first row of the chain is its anchor: the link that the rest hangs on, whose own
-- row is not there, because it was trimmed, or because there never was one (seq 0).
-- Nothing can be deleted from the audit, not even by its owner and by mistake, unless its
-- link is. Only trim_audit deletes links.
CREATE TABLE outbox.audit_chain (
    seq      bigint PRIMARY KEY, -- without gaps
    audit_id bigint UNIQUE REFERENCES outbox.audit (id), -- NULL for the anchor
    hash     bytea  NOT NULL,

    CONSTRAINT audit_chain_hash CHECK (octet_length(hash) = 32)
);

-- +goose StatementBegin
-- audit_hash is the link of an entry: SHA-256 of the link before it and of the
-- entry's place and columns as a JSON array of texts and nulls, in which the end of one
-- cannot be taken for the beginning of the next. No setting of a session has a part in it.
-- ReadAuditChain (queries/audit.sql) says the same again, because whoever checks must
-- not have to trust a function of this schema.
--
-- A column that the audit gets later is added at the end, and only where it is not NULL:
-- the links of older entries stay what they are.
CREATE FUNCTION outbox.audit_hash(previous bytea, seq bigint, entry outbox.audit) RETURNS bytea
LANGUAGE sql STABLE PARALLEL SAFE
RETURN sha256(previous || convert_to(json_build_array(seq::text, entry.id::text, extract(epoch FROM entry.at)::text, entry.actor, entry.act,
    entry.tenant_id::text, entry.job_id::text, entry.queue, entry.target, entry.before::text, entry.after::text,
    entry.reason, entry.request_id)::text, 'UTF8'));
-- +goose StatementEnd

-- +goose StatementBegin
-- chain_audit links an entry while its transaction commits. One transaction links at a
-- time: from its first link on until it has committed, it has the lock below.
--
-- Why nobody waits in a circle. Whoever has the lock has done all that its transaction
-- was sent to do and waits for nobody who may wait for the lock: the other triggers of
-- this schema that run at commit write rows of their own transaction or skip what is
-- locked, and NOTIFY's lock is taken after all triggers. Two bulk acts that commit at
-- once commit one after the other, whatever rows each has locked: the one that waits
-- for the lock holds nothing that the other one still needs. Whoever says SET
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
-- It runs as its owner: who acts may not write the chain otherwise. No sequential scan,
-- because the plan is made when the chain is short and kept while it grows.
CREATE FUNCTION outbox.chain_audit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    last outbox.audit_chain;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('outbox.audit_chain', 0));
    SELECT * INTO last FROM outbox.audit_chain ORDER BY seq DESC LIMIT 1;
    IF NOT FOUND THEN -- somebody has emptied it: acts go on, and whoever has noted a head sees that it is gone
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
-- +goose StatementEnd

-- +goose StatementBegin
-- trim_audit deletes the oldest entries that are older than keep, in the order of the
-- chain, up to max_rows of them, and returns how many. It is the only way by which
-- entries go: always a prefix of the chain, whose last link stays as the anchor. Links
-- are in the order of commits, times are when statements began: an old entry behind a
-- younger one stays until that one is old, too. The head stays, if only as the anchor, so
-- nobody who links waits for this, nor the other way round.
--
-- Handlers run in processes whose role may call it: what is younger than 30 days stays,
-- whatever they ask for.
CREATE FUNCTION outbox.trim_audit(keep interval, max_rows integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    anchor  bigint;
    trimmed bigint[];
BEGIN
    IF (keep >= interval '30 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'keep is %, want at least 30 days', coalesce(keep::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox.trim_audit', 0)) THEN
        RETURN 0; -- another reaper is at it
    END IF;
    SELECT max(prefix.seq), array_agg(prefix.audit_id)
    INTO anchor, trimmed
    FROM (
        SELECT oldest.seq, oldest.audit_id, bool_and(oldest.at < now() - keep) OVER (ORDER BY oldest.seq) AS is_old
        FROM (
            SELECT chain.seq, chain.audit_id, audit.at
            FROM outbox.audit_chain AS chain
            JOIN outbox.audit ON audit.id = chain.audit_id
            ORDER BY chain.seq
            LIMIT max_rows
        ) AS oldest
    ) AS prefix
    WHERE prefix.is_old;
    IF anchor IS NULL THEN
        RETURN 0;
    END IF;
    DELETE FROM outbox.audit_chain WHERE seq < anchor;
    UPDATE outbox.audit_chain SET audit_id = NULL WHERE seq = anchor;
    DELETE FROM outbox.audit WHERE id = ANY (trimmed);
    RETURN cardinality(trimmed);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- What is there already. Whoever inserts just now commits first, or waits for us and
-- then finds the trigger.
DO $$
DECLARE
    entry outbox.audit;
    n     bigint := 0;
    link  bytea := decode(repeat('00', 32), 'hex');
BEGIN
    LOCK TABLE outbox.audit IN SHARE ROW EXCLUSIVE MODE;
    INSERT INTO outbox.audit_chain (seq, hash) VALUES (n, link);
    FOR entry IN SELECT * FROM outbox.audit ORDER BY id LOOP
        n := n + 1;
        link := outbox.audit_hash(link, n, entry);
        INSERT INTO outbox.audit_chain (seq, audit_id, hash) VALUES (n, entry.id, link);
    END LOOP;
END
$$;
-- +goose StatementEnd

CREATE CONSTRAINT TRIGGER audit_is_chained
    AFTER INSERT ON outbox.audit
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW
    EXECUTE FUNCTION outbox.chain_audit();

-- +goose StatementBegin
-- What secure() has to know of it: nobody may change the chain, nor use the function
-- that writes it in a trigger of their own, and the reaper deletes entries through
-- trim_audit only. It is a long function, of which these few words change.
DO $$
DECLARE
    definition text := pg_get_functiondef('outbox.secure()'::regprocedure);
    words      text[];
BEGIN
    FOREACH words SLICE 1 IN ARRAY ARRAY[
        [$w$proname <> 'secure'$w$,
         $w$proname NOT IN ('secure', 'chain_audit')$w$],
        [$w$WHEN 'audit' THEN 'SELECT, INSERT, DELETE' ELSE everything END; -- the reaper trims it$w$,
         $w$WHEN 'audit' THEN 'SELECT, INSERT' WHEN 'audit_chain' THEN 'SELECT' ELSE everything END;$w$],
        [$w$WHEN 'audit' THEN 'SELECT, INSERT' -- what is written there stays$w$,
         $w$WHEN 'audit_chain' THEN 'SELECT' WHEN 'audit' THEN 'SELECT, INSERT' -- what is written there stays$w$]
    ] LOOP
        IF strpos(definition, words[1]) = 0 THEN
            RAISE EXCEPTION 'outbox.secure() does not say %', words[1];
        END IF;
        definition := replace(definition, words[1], words[2]);
    END LOOP;
    EXECUTE definition;
END
$$;
-- +goose StatementEnd
SELECT outbox.secure();

-- +goose Down
DROP TRIGGER audit_is_chained ON outbox.audit;
DROP TABLE outbox.audit_chain;
DROP FUNCTION outbox.chain_audit();
DROP FUNCTION outbox.trim_audit(interval, integer);
DROP FUNCTION outbox.audit_hash(bytea, bigint, outbox.audit);

-- +goose StatementBegin
DO $$
DECLARE
    definition text := pg_get_functiondef('outbox.secure()'::regprocedure);
    words      text[];
BEGIN
    FOREACH words SLICE 1 IN ARRAY ARRAY[
        [$w$proname NOT IN ('secure', 'chain_audit')$w$,
         $w$proname <> 'secure'$w$],
        [$w$WHEN 'audit' THEN 'SELECT, INSERT' WHEN 'audit_chain' THEN 'SELECT' ELSE everything END;$w$,
         $w$WHEN 'audit' THEN 'SELECT, INSERT, DELETE' ELSE everything END; -- the reaper trims it$w$],
        [$w$WHEN 'audit_chain' THEN 'SELECT' WHEN 'audit' THEN 'SELECT, INSERT' -- what is written there stays$w$,
         $w$WHEN 'audit' THEN 'SELECT, INSERT' -- what is written there stays$w$]
    ] LOOP
        IF strpos(definition, words[1]) = 0 THEN
            RAISE EXCEPTION 'outbox.secure() does not say %', words[1];
        END IF;
        definition := replace(definition, words[1], words[2]);
    END LOOP;
    EXECUTE definition;
END
$$;
-- +goose StatementEnd
SELECT outbox.secure();
