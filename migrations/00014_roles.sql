-- Who may do what to whose jobs: the roles outbox_owner, _producer, _worker, _api
-- and _reader, their grants, and row-level security on every table. docs/tenants.md
-- is the user's page; testdata/roles.golden lists what comes of it.
--
-- Takes ACCESS EXCLUSIVE on each table for a moment, as does calling
-- outbox.secure() again.

-- +goose Up
-- +goose StatementBegin
-- current_tenant is the tenant that this transaction is tied to by app.tenant_id;
-- NULL, which equals nothing, if there is none. After a SET LOCAL has ended the
-- setting is '' rather than absent.
CREATE FUNCTION outbox.current_tenant() RETURNS uuid
LANGUAGE sql STABLE PARALLEL SAFE
RETURN nullif(nullif(current_setting('app.tenant_id', true), ''), '*')::uuid;
-- +goose StatementEnd

-- +goose StatementBegin
-- all_tenants is whether this transaction is for every tenant: app.tenant_id is *.
CREATE FUNCTION outbox.all_tenants() RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
RETURN coalesce(current_setting('app.tenant_id', true) = '*', false);
-- +goose StatementEnd

-- +goose StatementBegin
-- drop_history drops a day of the history. It runs as its owner, because only the
-- owner of a table can drop it, and takes nothing but days before yesterday. The
-- day is locked before its parent; see reaper/drop.go.
CREATE FUNCTION outbox.drop_history(day regclass) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
        SELECT
        FROM pg_inherits
        JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
        WHERE pg_inherits.inhparent = 'outbox.history'::regclass
          AND child.oid = day
          AND (regexp_match(pg_get_expr(child.relpartbound, child.oid), 'TO \(''([^'']+)''\)'))[1]::timestamptz
              < date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC'
    ) THEN
        RAISE EXCEPTION '% is no day of the history before yesterday', day USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('LOCK TABLE ONLY %s IN ACCESS EXCLUSIVE MODE', day);
    EXECUTE format('DROP TABLE %s', day);
END
$$;
-- +goose StatementEnd

-- +goose StatementBegin
-- secure makes the roles, what they may do, and the policies; run again it puts
-- everything back in order. Call it as the owner after adding a table to this
-- schema, after changing the owner, or when an administrator has made the roles
-- that the migration was not allowed to make. It returns false, and leaves row
-- security as it is, while a role is missing.
--
-- Roles belong to the whole server: other databases may have made them already,
-- or be making them just now.
CREATE FUNCTION outbox.secure() RETURNS boolean
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    -- What a producer must not set and the API must not change, as far as they are there.
    of_the_engine CONSTANT text[] := '{epoch,attempt,lost_leases,slot,lease_owner,lease_expires_at,created_at,started_at,failed_at,'
        'unavailable_since,cancel_requested_at,last_error_code,last_error_message,error_fingerprint}';
    of_the_job CONSTANT text[] := '{id,tenant_id,kind,payload,content_type,created_at,started_at,lease_owner,lease_expires_at}';
    everything CONSTANT text := 'SELECT, INSERT, UPDATE, DELETE';
    -- Sub-selects are evaluated once a statement, not once a row.
    all_of_them CONSTANT text := '(SELECT outbox.all_tenants())';
    missing    text := '';
    role       text;
    tab        record;
    func       record;
    columns    record;
    policy     name;
    owners     text; -- who holds the table, whatever it is called
    visible    text; -- which rows a tenant sees
    grants     text;
BEGIN
    FOREACH role IN ARRAY '{outbox_owner,outbox_producer,outbox_worker,outbox_api,outbox_reader}'::text[] LOOP
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

    GRANT USAGE ON SCHEMA outbox TO outbox_owner, outbox_producer, outbox_worker, outbox_api, outbox_reader;
    REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM PUBLIC, outbox_producer, outbox_worker, outbox_api, outbox_reader;
    REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM PUBLIC, outbox_producer, outbox_worker, outbox_api, outbox_reader;
    REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM PUBLIC, outbox_producer, outbox_worker, outbox_api, outbox_reader;
    GRANT ALL ON ALL TABLES IN SCHEMA outbox TO outbox_owner;
    GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO outbox_owner;
    GRANT ALL ON ALL FUNCTIONS IN SCHEMA outbox TO outbox_owner;

    -- A function that runs as its caller lets nobody do more than before.
    FOR func IN
        SELECT oid::regprocedure AS name, prosecdef AS as_owner FROM pg_proc
        WHERE pronamespace = 'outbox'::regnamespace AND proname <> 'secure'
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_worker', func.name);
        IF NOT func.as_owner THEN
            EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO outbox_producer, outbox_api, outbox_reader', func.name);
        END IF;
    END LOOP;

    FOR tab IN
        SELECT c.oid::regclass AS name, c.relname, c.relkind, c.relispartition, pg_get_userbyid(c.relowner) AS owner,
               EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id' AND NOT attisdropped) AS names_tenant,
               EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'job_id' AND NOT attisdropped) AS names_job
        FROM pg_class AS c
        WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v')
        ORDER BY c.relname
    LOOP
        IF tab.relkind = 'v' THEN
            EXECUTE format('GRANT SELECT ON %s TO outbox_worker, outbox_api, outbox_reader', tab.name);
            CONTINUE;
        ELSIF tab.relname = 'schema_version' THEN
            EXECUTE format('GRANT SELECT ON %s TO outbox_worker, outbox_api', tab.name);
            CONTINUE;
        END IF;

        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', tab.name);
        FOR policy IN SELECT polname FROM pg_policy WHERE polrelid = tab.name LOOP
            EXECUTE format('DROP POLICY %I ON %s', policy, tab.name);
        END LOOP;
        owners := 'outbox_owner' || CASE WHEN tab.owner <> 'outbox_owner' THEN format(', %I', tab.owner) ELSE '' END;
        EXECUTE format('CREATE POLICY owner ON %s TO %s USING (true) WITH CHECK (true)', tab.name, owners);
        CONTINUE WHEN tab.relispartition; -- reached through the parent only, under the parent's grants and policies

        visible := CASE
            WHEN tab.relname = 'tokens' THEN 'true' -- who calls is not known before its token is
            WHEN tab.names_tenant THEN 'tenant_id = (SELECT outbox.current_tenant()) OR ' || all_of_them
            WHEN tab.names_job THEN all_of_them || format(' OR EXISTS (SELECT FROM outbox.jobs WHERE jobs.id = %1$s.job_id)'
                ' OR EXISTS (SELECT FROM outbox.history WHERE history.id = %1$s.job_id)', quote_ident(tab.relname))
            ELSE all_of_them -- what names no tenant concerns all of them
        END;
        IF tab.relname <> 'tokens' THEN
            grants := CASE tab.relname WHEN 'queues' THEN 'SELECT' WHEN 'audit' THEN 'SELECT, INSERT, DELETE' ELSE everything END; -- the reaper trims it
            EXECUTE format('GRANT %s ON %s TO outbox_worker', grants, tab.name);
            EXECUTE format('CREATE POLICY worker ON %s TO outbox_worker USING (true) WITH CHECK (true)', tab.name);
        END IF;
        grants := CASE tab.relname
            WHEN 'inbox' THEN NULL
            WHEN 'lease_extensions' THEN NULL -- written by the engine alone
            WHEN 'jobs' THEN 'SELECT, INSERT, DELETE' -- and UPDATE of some columns, below
            WHEN 'tokens' THEN 'SELECT, UPDATE (last_used_at)'
            WHEN 'attempts' THEN 'SELECT'
            WHEN 'history' THEN 'SELECT, INSERT' -- closed stays closed
            WHEN 'idempotency_keys' THEN 'SELECT, INSERT'
            WHEN 'audit' THEN 'SELECT, INSERT' -- what is written there stays
            ELSE everything
        END;
        IF grants IS NOT NULL THEN
            EXECUTE format('GRANT %s ON %s TO outbox_api', grants, tab.name);
            EXECUTE format('CREATE POLICY api ON %1$s TO outbox_api USING (%2$s) WITH CHECK (%2$s)', tab.name, visible);
        END IF;
        IF tab.relname NOT IN ('tokens', 'inbox', 'idempotency_keys') THEN
            EXECUTE format('GRANT SELECT ON %s TO outbox_reader', tab.name);
            EXECUTE format('CREATE POLICY reader ON %s FOR SELECT TO outbox_reader USING (%s)', tab.name, visible);
        END IF;

        CASE tab.relname
        WHEN 'queues' THEN -- that a queue is paused is no secret
            CREATE POLICY everybody ON outbox.queues FOR SELECT TO outbox_api, outbox_reader USING (true);
        WHEN 'idempotency_keys' THEN
            GRANT SELECT, INSERT ON outbox.idempotency_keys TO outbox_producer;
            EXECUTE format('CREATE POLICY producer_reads ON outbox.idempotency_keys FOR SELECT TO outbox_producer USING (%s)', visible);
            EXECUTE format('CREATE POLICY producer_writes ON outbox.idempotency_keys FOR INSERT TO outbox_producer WITH CHECK (%s)', visible);
        WHEN 'jobs' THEN
            -- RETURNING id needs to read it.
            GRANT SELECT (id) ON outbox.jobs TO outbox_producer;
            SELECT string_agg(quote_ident(attname), ', ') FILTER (WHERE attname <> ALL (of_the_engine)) AS insertable,
                   string_agg(quote_ident(attname), ', ') FILTER (WHERE attname <> ALL (of_the_job)) AS updatable
            INTO columns
            FROM pg_attribute WHERE attrelid = tab.name AND attnum > 0 AND NOT attisdropped;
            EXECUTE format('GRANT INSERT (%s) ON outbox.jobs TO outbox_producer', columns.insertable);
            EXECUTE format('GRANT UPDATE (%s) ON outbox.jobs TO outbox_api', columns.updatable);
            EXECUTE format('CREATE POLICY producer_reads ON outbox.jobs FOR SELECT TO outbox_producer USING (%s)', visible);
            EXECUTE format('CREATE POLICY producer_writes ON outbox.jobs FOR INSERT TO outbox_producer
                WITH CHECK ((%s) AND status IN (''created'', ''pending''))', visible);
        ELSE
        END CASE;
    END LOOP;
    RETURN true;
END
$$;
-- +goose StatementEnd

REVOKE ALL ON FUNCTION outbox.secure() FROM PUBLIC;
SELECT outbox.secure();

-- +goose Down
-- The roles stay: only the server's administrator knows who else uses them.
-- +goose StatementBegin
DO $$
DECLARE
    role   text;
    policy record;
BEGIN
    FOR policy IN
        SELECT polname, polrelid::regclass AS tab FROM pg_policy
        WHERE polrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace)
    LOOP
        EXECUTE format('DROP POLICY %I ON %s', policy.polname, policy.tab);
        EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY', policy.tab);
    END LOOP;
    FOREACH role IN ARRAY '{outbox_owner,outbox_producer,outbox_worker,outbox_api,outbox_reader}'::text[] LOOP
        CONTINUE WHEN to_regrole(role) IS NULL
            OR role = (SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = 'outbox.jobs'::regclass);
        EXECUTE format('REVOKE ALL ON ALL TABLES IN SCHEMA outbox FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL SEQUENCES IN SCHEMA outbox FROM %I', role);
        EXECUTE format('REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox FROM %I', role);
        EXECUTE format('REVOKE ALL ON SCHEMA outbox FROM %I', role);
    END LOOP;
    GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA outbox TO PUBLIC;
END
$$;
-- +goose StatementEnd
DROP FUNCTION outbox.secure();
DROP FUNCTION outbox.drop_history(regclass);
DROP FUNCTION outbox.all_tenants();
DROP FUNCTION outbox.current_tenant();
