-- current_tenant returns the tenant to which app.tenant_id binds this transaction; NULL, which equals nothing, if there
-- is none. After a SET LOCAL has ended the setting is '' rather than absent.
CREATE OR REPLACE FUNCTION outbox.current_tenant() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
RETURN nullif(nullif(current_setting('app.tenant_id', true), ''), '*')::uuid;
