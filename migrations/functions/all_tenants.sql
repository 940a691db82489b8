-- all_tenants reports whether this transaction is for every tenant: app.tenant_id is *.
CREATE OR REPLACE FUNCTION outbox.all_tenants() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(current_setting('app.tenant_id', true) = '*', false);
