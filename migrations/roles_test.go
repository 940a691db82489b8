package migrations_test

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/migrations"
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

// What no table, view or function may be, whoever added it.
func TestNothingIsLeftUnsecured(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for rule, query := range map[string]string{
		"every table forces row security, partitions too": `
			SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')
			AND relname <> 'schema_version' AND NOT (relrowsecurity AND relforcerowsecurity)`,
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

// Who calls it may have added a table, or changed a grant by hand.
func TestSecureAgainChangesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	want := schema(t, db, privileges)
	for _, step := range []string{
		`SELECT outbox.secure()`,
		`GRANT SELECT ON outbox.tokens TO outbox_reader; GRANT INSERT (epoch) ON outbox.jobs TO outbox_producer;
		 CREATE POLICY odd ON outbox.jobs USING (true); GRANT EXECUTE ON FUNCTION outbox.ensure_history TO PUBLIC;
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

// Taking the migration back leaves the tables to whoever could use them before.
func TestDownOpensTheTablesAgain(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	for range len(names(t)) - 13 { // down to 00013, before the roles
		if err := migrations.Down(t.Context(), db); err != nil {
			t.Fatal(err)
		}
	}
	var left int
	if err := db.QueryRow(t.Context(), `SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'p')
		AND NOT relispartition AND (relrowsecurity OR relforcerowsecurity)`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d tables have row security, %v; want none", left, err)
	}
	hand := asRole(t, db, `GRANT USAGE ON SCHEMA outbox TO %[1]I; GRANT INSERT, SELECT (id) ON outbox.jobs TO %[1]I`)
	if _, err := hand.Exec(t.Context(), `SELECT outbox.enqueue('greet')`); err != nil {
		t.Errorf("enqueue with grants made by hand: %v", err)
	}
	up(t, db)
	if got, err := os.ReadFile(rolesGolden); err != nil || string(got) != schema(t, db, privileges) {
		t.Errorf("up again the privileges are not the golden ones (%v)", err)
	}
}
