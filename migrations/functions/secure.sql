-- secure creates the roles outbox_owner, _producer, _worker, _api and _reader, their privileges, and the policies of
-- row security; docs/guides/tenants.md is the user's page, and testdata/roles.golden lists the result. Each migrate up
-- calls it. Call it as the owner after adding a table to this schema, after changing the owner, or when an
-- administrator has created the roles that the migration was not allowed to create. While a role is missing it returns
-- false, and leaves row security unchanged.
--
-- If everything is as wanted it changes nothing. To change the row security of a table it takes ACCESS EXCLUSIVE on the
-- table, and every other statement would wait behind it for the table's longest reader. So it gives up after
-- lock_timeout: call it again.
--
-- Roles belong to the whole server: other databases may have created them already, or be creating them just now.
CREATE OR REPLACE FUNCTION outbox.secure() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '10ms' AS $$
DECLARE
    -- The columns that producers and the API must not set, and that the API must not change, as far as they exist.
    of_the_engine CONSTANT text[] := '{epoch,attempt,lost_leases,slot,lease_owner,lease_expires_at,created_at,started_at,failed_at,'
        'unavailable_since,cancel_requested_at,last_error_code,last_error_message,error_fingerprint}';
    of_the_log CONSTANT text[] := '{position,at}'; -- the database sets them
    -- It sets these, too: a role that could store ids ahead of the identity would stop every act that comes to one of
    -- them.
    of_the_identity CONSTANT text[] := '{id,at}';
    of_the_job CONSTANT text[] := '{id,tenant_id,kind,payload,content_type,created_at,started_at,lease_owner,lease_expires_at,streamed}';
    ours CONSTANT text[] := '{outbox_owner,outbox_producer,outbox_worker,outbox_api,outbox_reader}';
    engines CONSTANT text[] := '{inbox,inbox_positions}'; -- the API sees the positions of bridges, and nothing else
    logins CONSTANT text[] := '{tokens,ended_sessions}'; -- the API alone reads them, before it knows the tenant
    records CONSTANT text[] := '{schema_version,schema_files}'; -- of the migrations; without row security
    everything CONSTANT text[] := '{SELECT,INSERT,UPDATE,DELETE}';
    -- Conditions are written as pg_get_expr prints them, to be compared with its output. Sub-selects are evaluated once
    -- for each statement, not for each row.
    all_of_them CONSTANT text := '( SELECT outbox.all_tenants() AS all_tenants)';
    -- Only the relay stores jobs of its kinds and in its queues, and their idempotency keys: see KindFault and
    -- QueueFault in package engine. The API may still change such jobs, as when an operator replays a dead letter.
    no_kind_of_the_relay CONSTANT text := '(kind !~~ ''relay:%''::text)';
    not_of_the_relay CONSTANT text := no_kind_of_the_relay || ' AND (queue !~~ ''relay:%''::text)';
    missing   text := '';
    role      text;
    object    record;
    privilege text;
    tab       record;
    visible   text; -- which rows a tenant sees
    storable  text; -- which of them producers and the API may store
    wanted    text[];
    policy    text;
BEGIN
    FOREACH role IN ARRAY ours LOOP
        CONTINUE WHEN to_regrole(role) IS NOT NULL;
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL; -- another database was faster
            WHEN insufficient_privilege THEN missing := missing || format('CREATE ROLE %I NOLOGIN; ', role);
        END;
    END LOOP;
    IF missing <> '' THEN
        RAISE NOTICE 'outbox: no row-level security, because % may not create roles', current_user
            USING HINT = format('Have an administrator run: %sThen call: SELECT outbox.secure();', missing);
        RETURN false;
    END IF;

    FOR role IN
        SELECT name FROM unnest(ours) AS name
        WHERE name::regrole NOT IN (
            SELECT granted.grantee FROM pg_namespace, aclexplode(nspacl) AS granted WHERE nspname = 'outbox' AND granted.privilege_type = 'USAGE')
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA outbox TO %I', role);
    END LOOP;

    FOR object IN
        WITH thing AS (
            SELECT oid, CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass AS name,
                   CASE WHEN relispartition THEN 'partition'
                        WHEN relkind IN ('r', 'p') THEN 'table'
                        WHEN relkind = 'v' THEN 'view'
                        ELSE 'sequence' END AS kind,
                   relname, relowner AS owner, relacl AS acl, acldefault(CASE relkind WHEN 'S' THEN 's' ELSE 'r' END::"char", relowner) AS all_acl
            FROM pg_class
            WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p', 'v', 'S')
            UNION ALL
            SELECT oid, 'FUNCTION ' || oid::regprocedure, CASE WHEN prosecdef THEN 'function as owner' ELSE 'function' END,
                   proname, proowner, proacl, acldefault('f', proowner)
            FROM pg_proc
            WHERE pronamespace = 'outbox'::regnamespace
        ), wanted (oid, role, privilege) AS (
            SELECT thing.oid, 'outbox_owner', owners.privilege_type
            FROM thing, aclexplode(thing.all_acl) AS owners
            WHERE owners.grantee = thing.owner
            UNION ALL
            -- A function that runs as its caller gives nobody new privileges.
            SELECT thing.oid, may.role, 'EXECUTE'
            FROM thing, unnest('{outbox_worker,outbox_producer,outbox_api,outbox_reader}'::text[]) AS may(role)
            WHERE thing.kind LIKE 'function%' AND thing.relname NOT IN ('secure', 'chain_audit')
              AND (thing.kind = 'function' OR may.role = 'outbox_worker')
            UNION ALL
            SELECT thing.oid, may.role, 'SELECT'
            FROM thing, unnest('{outbox_worker,outbox_api,outbox_reader}'::text[]) AS may(role)
            WHERE thing.kind = 'view' OR (thing.relname = ANY (records) AND may.role <> 'outbox_reader')
            UNION ALL
            SELECT thing.oid, may.role, unnest(may.privileges)
            FROM thing
            CROSS JOIN LATERAL (VALUES
                ('outbox_worker', CASE thing.relname
                    WHEN 'tokens' THEN '{}'
                    WHEN 'ended_sessions' THEN '{}'
                    WHEN 'queues' THEN '{SELECT}'
                    WHEN 'audit' THEN '{SELECT}' -- and INSERT of some columns, below; trimmed by trim_audit only
                    WHEN 'freed_keys' THEN '{SELECT,UPDATE,DELETE}' -- and INSERT of some columns, below
                    WHEN 'audit_chain' THEN '{SELECT}'
                    WHEN 'events' THEN '{SELECT}' -- and INSERT of some columns, below
                    ELSE everything END),
                ('outbox_api', CASE thing.relname
                    WHEN 'jobs' THEN '{SELECT,DELETE}' -- and INSERT and UPDATE of some columns, below
                    WHEN 'tokens' THEN '{SELECT,UPDATE (last_used_at)}'
                    WHEN 'ended_sessions' THEN '{SELECT,INSERT,DELETE}'
                    WHEN 'attempts' THEN '{SELECT}'
                    WHEN 'history' THEN '{SELECT,INSERT}' -- closed stays closed
                    WHEN 'idempotency_keys' THEN '{SELECT,INSERT}'
                    WHEN 'audit' THEN '{SELECT}' -- and INSERT of some columns, below; what is written there stays
                    WHEN 'freed_keys' THEN '{SELECT,UPDATE,DELETE}' -- and INSERT of some columns, below
                    WHEN 'audit_chain' THEN '{SELECT}'
                    WHEN 'events' THEN '{SELECT}' -- and INSERT of some columns, below
                    WHEN 'held_messages' THEN '{SELECT}'
                    WHEN 'chores' THEN '{SELECT}' -- shows whether rows beyond their retention are removed
                    WHEN 'measured' THEN '{SELECT}'
                    WHEN 'measures' THEN '{SELECT}'
                    WHEN 'measured_hours' THEN '{SELECT}'
                    WHEN 'measures_hours' THEN '{SELECT}'
                    WHEN 'builds' THEN '{SELECT}'
                    WHEN 'lease_extensions' THEN '{SELECT}' -- shows whether a lease has lapsed
                    WHEN 'inbox' THEN '{}'
                    WHEN 'inbox_positions' THEN '{SELECT}' -- of bridges
                    ELSE everything END),
                ('outbox_reader', CASE WHEN thing.relname = ANY (logins || '{inbox,inbox_positions,idempotency_keys}'::text[])
                    THEN '{}' ELSE '{SELECT}'::text[] END),
                ('outbox_producer', CASE thing.relname
                    WHEN 'idempotency_keys' THEN '{SELECT,INSERT}'
                    WHEN 'jobs' THEN '{SELECT (id)}' -- RETURNING id reads it
                    ELSE '{}'::text[] END)
            ) AS may(role, privileges)
            WHERE thing.kind = 'table' AND thing.relname <> ALL (records)
            UNION ALL
            SELECT attrelid, may.role, format('%s (%I)', may.act, attname)
            FROM pg_attribute
            JOIN (VALUES
                ('outbox.jobs', 'outbox_producer', 'INSERT', of_the_engine),
                ('outbox.jobs', 'outbox_api', 'INSERT', of_the_engine),
                ('outbox.jobs', 'outbox_api', 'UPDATE', of_the_job),
                ('outbox.events', 'outbox_producer', 'INSERT', of_the_log),
                ('outbox.events', 'outbox_worker', 'INSERT', of_the_log),
                ('outbox.events', 'outbox_api', 'INSERT', of_the_log),
                ('outbox.audit', 'outbox_worker', 'INSERT', of_the_identity),
                ('outbox.audit', 'outbox_api', 'INSERT', of_the_identity),
                ('outbox.freed_keys', 'outbox_worker', 'INSERT', of_the_identity),
                ('outbox.freed_keys', 'outbox_api', 'INSERT', of_the_identity)
            ) AS may(tab, role, act, all_but) ON attrelid = may.tab::regclass
            WHERE attnum > 0 AND NOT attisdropped AND attname <> ALL (may.all_but)
            UNION ALL
            SELECT thing.oid, may.role, 'USAGE' -- the default of a position is evaluated as the producer
            FROM thing, unnest('{outbox_producer,outbox_worker,outbox_api}'::text[]) AS may(role)
            WHERE thing.kind = 'sequence' AND thing.relname = 'events_position_seq'
            UNION ALL
            SELECT thing.oid, may.role, 'SELECT' -- a relay checks whether it went back, an operator its end
            FROM thing, unnest('{outbox_worker,outbox_api,outbox_reader}'::text[]) AS may(role)
            WHERE thing.kind = 'sequence' AND thing.relname = 'events_position_seq'
        ), actual (oid, grantee, privilege) AS (
            SELECT thing.oid, given.grantee, given.privilege_type
            FROM thing, aclexplode(coalesce(thing.acl, thing.all_acl)) AS given
            UNION ALL
            SELECT thing.oid, given.grantee, format('%s (%I)', given.privilege_type, attname)
            FROM thing
            JOIN pg_attribute ON attrelid = thing.oid AND attnum > 0 AND NOT attisdropped, aclexplode(attacl) AS given
            WHERE thing.kind NOT LIKE 'function%'
        )
        SELECT thing.name, ARRAY(
                   SELECT format('%s ON %s TO %s', wanted.privilege, thing.name, wanted.role)
                   FROM wanted
                   WHERE wanted.oid = thing.oid AND wanted.role::regrole <> thing.owner
                   ORDER BY 1) AS wanted,
               ARRAY(
                   SELECT format('%s ON %s TO %s', actual.privilege, thing.name, coalesce(rolname, 'PUBLIC'))
                   FROM actual
                   LEFT JOIN pg_roles ON pg_roles.oid = actual.grantee
                   WHERE actual.oid = thing.oid AND actual.grantee <> thing.owner AND coalesce(rolname = ANY (ours), true)
                   ORDER BY 1) AS actual
        FROM thing
    LOOP
        CONTINUE WHEN object.wanted = object.actual;
        EXECUTE format('REVOKE ALL ON %s FROM PUBLIC, outbox_producer, outbox_worker, outbox_api, outbox_reader', object.name);
        FOREACH privilege IN ARRAY object.wanted LOOP
            EXECUTE 'GRANT ' || privilege;
        END LOOP;
    END LOOP;

    FOR tab IN
        SELECT c.oid::regclass AS name, c.relname, c.relispartition, c.relrowsecurity AND c.relforcerowsecurity AS secured,
               array_to_string(ARRAY(
                   SELECT quote_ident(rolname)
                   FROM pg_roles
                   WHERE oid = c.relowner OR rolname = 'outbox_owner'
                   ORDER BY 1), ', ') AS owners,
               EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id' AND NOT attisdropped) AS names_tenant,
               EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'job_id' AND NOT attisdropped) AS names_job,
               ARRAY(SELECT format('CREATE POLICY %I ON %s FOR %s TO %s', polname, c.oid::regclass,
                                CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE'
                                    WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
                                (SELECT string_agg(quote_ident(rolname), ', ' ORDER BY quote_ident(rolname))
                                    FROM pg_roles WHERE oid = ANY (polroles)))
                            || coalesce(' USING (' || regexp_replace(pg_get_expr(polqual, polrelid), '\s+', ' ', 'g') || ')', '')
                            || coalesce(' WITH CHECK (' || regexp_replace(pg_get_expr(polwithcheck, polrelid), '\s+', ' ', 'g') || ')', '')
                     FROM pg_policy WHERE polrelid = c.oid AND polpermissive ORDER BY polname) AS actual,
               ARRAY(SELECT polname FROM pg_policy WHERE polrelid = c.oid) AS names
        FROM pg_class AS c
        WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p') AND c.relname <> ALL (records)
        ORDER BY c.relname
    LOOP
        visible := CASE
            WHEN tab.relname = ANY (logins) THEN 'true'
            WHEN tab.names_tenant THEN '((tenant_id = ( SELECT outbox.current_tenant() AS current_tenant)) OR ' || all_of_them || ')'
            WHEN tab.names_job THEN format('(%2$s OR (EXISTS ( SELECT FROM outbox.jobs WHERE (jobs.id = %1$I.job_id)))'
                ' OR (EXISTS ( SELECT FROM outbox.history WHERE (history.id = %1$I.job_id))))', tab.relname, all_of_them)
            ELSE all_of_them -- a table without a tenant concerns all of them
        END;
        storable := CASE tab.relname
            WHEN 'jobs' THEN '(' || visible || ' AND ' || not_of_the_relay
                || ' AND (status = ANY (ARRAY[''created''::outbox.job_status, ''pending''::outbox.job_status])))'
            WHEN 'idempotency_keys' THEN '(' || visible || ' AND ' || no_kind_of_the_relay || ')'
            ELSE visible
        END;
        -- In the order of their names, in which they are compared.
        wanted := ARRAY[]::text[];
        IF NOT tab.relispartition AND tab.relname <> ALL (engines) THEN
            wanted := wanted || format('CREATE POLICY api ON %s FOR ALL TO outbox_api USING (%s) WITH CHECK (%s)', tab.name, visible, storable);
        END IF;
        IF tab.relname = 'jobs' THEN
            wanted := wanted || format('CREATE POLICY api_changes ON %1$s FOR UPDATE TO outbox_api USING (%2$s) WITH CHECK (%2$s)', tab.name, visible);
        END IF;
        IF tab.relname = 'inbox_positions' THEN
            wanted := wanted || format('CREATE POLICY api ON %s FOR SELECT TO outbox_api USING (((consumer = ''-bridge''::text) AND %s))', tab.name, all_of_them);
        END IF;
        -- Neither that a queue is paused is a secret, nor when it was measured.
        IF tab.relname IN ('queues', 'measured', 'measured_hours') THEN
            wanted := wanted || format('CREATE POLICY everybody ON %s FOR SELECT TO outbox_api, outbox_reader USING (true)', tab.name);
        END IF;
        wanted := wanted || format('CREATE POLICY owner ON %s FOR ALL TO %s USING (true) WITH CHECK (true)', tab.name, tab.owners);
        IF tab.relname = 'events' THEN
            wanted := wanted || format('CREATE POLICY producer ON %s FOR INSERT TO outbox_producer WITH CHECK (%s)', tab.name, visible);
        ELSIF tab.relname IN ('jobs', 'idempotency_keys') THEN
            wanted := wanted || format('CREATE POLICY producer_reads ON %s FOR SELECT TO outbox_producer USING (%s)', tab.name, visible)
                || format('CREATE POLICY producer_writes ON %s FOR INSERT TO outbox_producer WITH CHECK (%s)', tab.name, storable);
        END IF;
        IF NOT tab.relispartition AND tab.relname <> ALL (logins || '{inbox,inbox_positions,idempotency_keys}'::text[]) THEN
            wanted := wanted || format('CREATE POLICY reader ON %s FOR SELECT TO outbox_reader USING (%s)', tab.name, visible);
        END IF;
        IF NOT tab.relispartition AND tab.relname <> ALL (logins) THEN
            wanted := wanted || format('CREATE POLICY worker ON %s FOR ALL TO outbox_worker USING (true) WITH CHECK (true)', tab.name);
        END IF;
        CONTINUE WHEN tab.secured AND tab.actual = wanted AND cardinality(tab.names) = cardinality(wanted);

        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', tab.name);
        FOREACH policy IN ARRAY tab.names LOOP
            EXECUTE format('DROP POLICY %I ON %s', policy, tab.name);
        END LOOP;
        FOREACH policy IN ARRAY wanted LOOP
            EXECUTE policy;
        END LOOP;
    END LOOP;
    RETURN true;
END
$$;
REVOKE ALL ON FUNCTION outbox.secure() FROM PUBLIC;
