-- trim_audit deletes up to max_rows of the oldest entries that are older than keep, in the order of the chain, and
-- returns how many it deleted. It is the only way in which entries are deleted: always a prefix of the chain, whose
-- last link stays as the anchor. Links are in the order of commits, while times are when statements began: an old entry
-- behind a younger one stays until that one is old, too. The head stays, if only as the anchor, so a transaction that
-- links does not wait for this function, nor the other way round.
--
-- Handlers run in processes whose role may call it: entries younger than 30 days stay, whatever keep is.
CREATE OR REPLACE FUNCTION outbox.trim_audit(keep interval, max_rows integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    anchor  bigint;
    trimmed bigint[];
BEGIN
    -- As times, not as intervals: '-1200 months 36030 days' compares as 30 days, and lies a year in the future.
    IF (now() - keep <= now() - interval '30 days') IS NOT TRUE THEN
        RAISE EXCEPTION 'keep is %, want at least 30 days', coalesce(keep::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF NOT pg_try_advisory_xact_lock(hashtextextended('outbox.trim_audit', 0)) THEN
        RETURN 0; -- another reaper is trimming
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
REVOKE ALL ON FUNCTION outbox.trim_audit(interval, integer) FROM PUBLIC; -- it runs as its owner
