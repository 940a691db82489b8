package migrations_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

const rolesGolden = "testdata/roles.golden"

// privileges is one line for everything that somebody who is not the owner may do
// in the schema outbox, and for every policy.
const privileges = `
	WITH relations AS (
	    SELECT oid, relname, relkind, relacl, relispartition, relrowsecurity, relforcerowsecurity
	    FROM pg_class
	    WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p', 'v', 'S') AND NOT relispartition
	), kinds (relkind, word) AS (
	    VALUES ('r'::"char", 'table'), ('p', 'table'), ('v', 'view'), ('S', 'sequence')
	), grantee AS (
	    SELECT 0::oid AS oid, 'PUBLIC' AS name UNION ALL SELECT oid, rolname FROM pg_roles WHERE rolname LIKE 'outbox\_%'
	)
	SELECT format('schema: %s may %s', grantee.name, string_agg(privilege_type, ', ' ORDER BY privilege_type))
	FROM pg_namespace, aclexplode(nspacl) AS acl JOIN grantee ON grantee.oid = acl.grantee
	WHERE nspname = 'outbox'
	GROUP BY grantee.name
	UNION ALL
	SELECT format('%s %s: %s may %s', word, relname, grantee.name, string_agg(privilege_type, ', ' ORDER BY privilege_type))
	FROM relations JOIN kinds USING (relkind), aclexplode(relacl) AS acl JOIN grantee ON grantee.oid = acl.grantee
	WHERE grantee.name <> 'outbox_owner'
	GROUP BY word, relname, grantee.name
	UNION ALL
	SELECT format('%s %s: %s may %s (%s)', word, relname, grantee.name, privilege_type, string_agg(attname, ', ' ORDER BY attname))
	FROM relations JOIN kinds USING (relkind) JOIN pg_attribute ON attrelid = relations.oid, aclexplode(attacl) AS acl JOIN grantee ON grantee.oid = acl.grantee
	GROUP BY word, relname, grantee.name, privilege_type
	UNION ALL
	SELECT format('function %s: %s may EXECUTE%s', proname, string_agg(grantee.name, ', ' ORDER BY grantee.name), CASE WHEN prosecdef THEN ' as its owner' END)
	FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS acl JOIN grantee ON grantee.oid = acl.grantee
	WHERE pronamespace = 'outbox'::regnamespace AND grantee.name <> 'outbox_owner'
	GROUP BY pg_proc.oid, proname, prosecdef
	UNION ALL
	SELECT format('table %s: row security %s%s', relname, CASE WHEN relrowsecurity THEN 'on' ELSE 'off' END, CASE WHEN relforcerowsecurity THEN ', forced' END)
	FROM relations WHERE relkind IN ('r', 'p')
	UNION ALL
	SELECT format('table %s: policy %s for %s to %s%s%s', relname, polname,
	    CASE polcmd WHEN 'r' THEN 'SELECT' WHEN 'a' THEN 'INSERT' WHEN 'w' THEN 'UPDATE' WHEN 'd' THEN 'DELETE' ELSE 'ALL' END,
	    (SELECT string_agg(CASE WHEN rolname LIKE 'outbox\_%' THEN rolname ELSE 'whoever owns it' END, ', ' ORDER BY rolname LIKE 'outbox\_%' DESC, rolname) FROM pg_roles WHERE pg_roles.oid = ANY (polroles)),
	    ' using ' || replace(pg_get_expr(polqual, polrelid), E'\n', ' '), ' check ' || replace(pg_get_expr(polwithcheck, polrelid), E'\n', ' '))
	FROM relations JOIN pg_policy ON polrelid = relations.oid`

func TestPrivilegesAreTheGoldenOnes(t *testing.T) {
	t.Parallel()
	got := schema(t, pgtest.New(t), privileges)
	if *update {
		if err := os.WriteFile(rolesGolden, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(rolesGolden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("go test ./migrations -update accepts this (-want +got):\n%s", diff)
	}
}

// What no table, view or function may be.
func TestNothingIsLeftUnsecured(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for rule, query := range map[string]string{
		"every table forces row security, partitions too": `
			SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')
			AND relname NOT IN ('schema_version', 'schema_files') AND NOT (relrowsecurity AND relforcerowsecurity)`,
		"every view shows what its reader may see": `
			SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('v', 'm')
			AND NOT coalesce('security_invoker=true' = ANY (reloptions), false)`,
		"a function that runs as its owner has a search_path": `
			SELECT proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace AND prosecdef
			AND NOT coalesce('search_path=pg_catalog, pg_temp' = ANY (proconfig), false)`,
		"nobody has anything of outbox as PUBLIC": `
			SELECT proname FROM pg_proc, aclexplode(coalesce(proacl, acldefault('f', proowner))) AS acl
			WHERE pronamespace = 'outbox'::regnamespace AND grantee = 0
			UNION ALL SELECT relname FROM pg_class, aclexplode(relacl) AS acl WHERE relnamespace = 'outbox'::regnamespace AND grantee = 0`,
		"a day of the history is granted to nobody": `
			SELECT relname FROM pg_class, aclexplode(relacl) AS acl
			WHERE relnamespace = 'outbox'::regnamespace AND relispartition AND grantee <> relowner AND grantee <> 'outbox_owner'::regrole`,
		"no role of ours can log in or pass by row security": `
			SELECT rolname FROM pg_roles WHERE rolname LIKE 'outbox\_%' AND (rolcanlogin OR rolsuper OR rolbypassrls OR rolcreaterole OR rolcreatedb)`,
	} {
		rows, err := db.Query(t.Context(), query)
		if err != nil {
			t.Fatalf("%s: %v", rule, err)
		}
		breakers, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(breakers) > 0 {
			t.Errorf("%s, but not %s (%v)", rule, strings.Join(breakers, ", "), err)
		}
	}
}

// An administrator may have added a table, or changed a grant by hand.
func TestSecureAgainChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	want := schema(t, db, privileges)
	for _, step := range []string{
		`SELECT outbox.secure()`,
		`GRANT SELECT ON outbox.tokens TO outbox_reader; GRANT INSERT (epoch) ON outbox.jobs TO outbox_producer;
		 CREATE POLICY odd ON outbox.jobs USING (true); GRANT EXECUTE ON FUNCTION outbox.ensure_days TO PUBLIC;
		 ALTER TABLE outbox.history NO FORCE ROW LEVEL SECURITY; SELECT outbox.secure()`,
	} {
		if _, err := db.Exec(t.Context(), step); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, schema(t, db, privileges)); diff != "" {
			t.Errorf("after %s (-want +got):\n%s", step, diff)
		}
	}
}

// Where everything is as wanted, secure takes no lock and writes nothing: it may be called, and
// a migration that calls it may run, beside any reader.
func TestSecureDoesNothingWhereNothingIsToDo(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	var secured, wrote bool
	if err := tx.QueryRow(t.Context(), `SELECT outbox.secure()`).Scan(&secured); err != nil || !secured {
		t.Fatalf("secured = %t, %v", secured, err)
	}
	var locks string
	err = tx.QueryRow(t.Context(), `
		SELECT pg_current_xact_id_if_assigned() IS NOT NULL, coalesce(string_agg(relation::regclass || ' ' || mode, ', '), '')
		FROM pg_locks
		WHERE pid = pg_backend_pid() AND locktype = 'relation' AND mode <> 'AccessShareLock'`).Scan(&wrote, &locks)
	if err != nil || wrote || locks != "" {
		t.Errorf("it wrote something: %t, it has the locks %q, %v; want neither", wrote, locks, err)
	}
}
