-- debezium_events has the columns of the outbox table of Debezium's Outbox Event Router, for
-- those who come from there. An event whose header type says so is of that type, others of
-- their topic. A payload that is no JSON, or that jsonb cannot hold, is NULL.
CREATE OR REPLACE VIEW outbox.debezium_events WITH (security_invoker = true) AS
SELECT id, topic AS aggregatetype, key AS aggregateid, coalesce(headers ->> 'type', topic) AS type,
       CASE WHEN content_type = 'application/json' THEN outbox.as_jsonb(payload) END AS payload,
       tenant_id, position, at
FROM outbox.events;
