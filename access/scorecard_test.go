package access_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// relation is a table or a view of the schema, from the catalog: what a migration
// adds is tested by itself.
type relation struct {
	Name      string
	Kind      string
	HasTenant bool
	HasJob    bool
	Column    string // one that can be set to itself
}

// of returns the condition that a row is of a tenant. It returns "true" for what names neither a tenant nor a job, and
// so concerns all of them.
func (rel relation) of(n tenant) string {
	switch {
	case rel.HasTenant:
		return `tenant_id = '` + n.id.String() + `'`
	case rel.HasJob:
		return `job_id = '` + n.waiting.String() + `'`
	}
	return `true`
}

// logins are the tables that the API reads before it knows the tenant.
var logins = []string{"tokens", "ended_sessions"}

func relations(t *testing.T, db *pgxpool.Pool) []relation {
	t.Helper()
	rows, _ := db.Query(t.Context(), `
		SELECT c.relname, c.relkind::text, EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'tenant_id' AND NOT attisdropped),
		       EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attname = 'job_id' AND NOT attisdropped),
		       (SELECT attname FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity = '' ORDER BY attname <> 'tenant_id', attnum LIMIT 1)
		FROM pg_class AS c
		WHERE c.relnamespace = 'outbox'::regnamespace AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition
		ORDER BY 1`) // days of the history show nothing by themselves; see TestWhatEachRoleSees
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	if err != nil || len(found) < 15 {
		t.Fatalf("found %d, %v", len(found), err)
	}
	return found
}

// fill gives the tenant a row in every table, as far as a row can be made up; populate
// has made real ones.
func fill(t *testing.T, db *pgxpool.Pool, n tenant) (empty []string) {
	t.Helper()
	exec(t, db, `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at) VALUES ($1, 'report', '1 hour', 'mail', '{}', now())`, n.id)
	exec(t, db, `INSERT INTO outbox.operations (id, tenant_id, act, filter, per_second, matched, actor, reason, request_id) VALUES (outbox.uuid_v7(), $1, 'replay', '{}', 0, 0, 'ada', '', '')`, n.id)
	for _, rel := range relations(t, db) {
		// Rows of freed_keys are gone before anybody sees them.
		if rel.Kind == "v" || slices.Contains(logins, rel.Name) || rel.Name == "schema_version" || rel.Name == "schema_files" || rel.Name == "freed_keys" {
			continue
		}
		count := `SELECT count(*) FROM outbox.` + rel.Name + ` WHERE ` + rel.of(n)
		if ask[int](t, db, count) == 0 {
			_, err := db.Exec(t.Context(), ask[string](t, db, `
				SELECT format('INSERT INTO outbox.%I (%s) OVERRIDING SYSTEM VALUE VALUES (%s)', $1::text, string_agg(quote_ident(attname), ', '),
				    string_agg(CASE WHEN attname = 'tenant_id' THEN quote_literal($2::text) WHEN attname IN ('id', 'job_id') AND atttypid = 'uuid'::regtype THEN quote_literal($3::text)
				        ELSE CASE format_type(atttypid, NULL) WHEN 'text' THEN '''x''' WHEN 'bytea' THEN '''x''' WHEN 'jsonb' THEN '''{}''' WHEN 'uuid' THEN 'gen_random_uuid()'
				            WHEN 'boolean' THEN 'false' WHEN 'interval' THEN '''1 hour''' WHEN 'timestamp with time zone' THEN 'now()' WHEN 'text[]' THEN '''{x}''' WHEN 'integer[]' THEN '''{1}''' WHEN 'bigint[]' THEN '''{1}'''
				            WHEN 'outbox.job_status' THEN '''pending''' ELSE '1' END END, ', '))
				FROM pg_attribute
				WHERE attrelid = ('outbox.' || $1)::regclass AND attnum > 0 AND NOT attisdropped AND (attname = 'tenant_id' OR attnotnull AND NOT atthasdef AND attidentity = '')`,
				rel.Name, n.id.String(), n.waiting.String()))
			if err != nil {
				t.Logf("no row was made up for %s: %v", rel.Name, err)
			}
		}
		if ask[int](t, db, count) == 0 {
			empty = append(empty, rel.Name)
		}
	}
	return empty
}

// G3: every table and view × role × verb × tenant of the transaction. No row of
// another tenant is seen, changed, deleted, merged or copied, and without a tenant
// there are none at all.
func TestG3NoVerbReachesAnotherTenantsRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := populate(t, db), populate(t, db)
	fill(t, db, ours)
	empty := fill(t, db, theirs)
	if len(empty) > 0 {
		t.Errorf("%v are empty, so that nothing is tested of them: teach fill to make a row", empty)
	}
	untouched := everythingOf(t, db, theirs)
	all := relations(t, db)
	pools := map[string]*pgxpool.Pool{}
	for _, role := range []string{"outbox_producer", "outbox_api", "outbox_reader"} {
		pools[role] = login(t, db, role, "")
	}
	// When it was measured, and what is paused, is no secret.
	open := []string{"queues", "measured", "measured_hours", "schema_version", "schema_files"}
	for role, pool := range pools {
		for _, context := range []string{ours.id.String(), "", "unset", outbox.NewID().String()} {
			for _, rel := range all {
				if slices.Contains(logins, rel.Name) {
					continue // the caller is not known before its token or session is
				}
				if !rel.HasTenant && (slices.Contains(open, rel.Name) || rel.Kind == "v") {
					continue // which have no tenant to be kept apart, or have it under another name
				}
				for verb, sql := range verbs(t, db, role, rel, ours, theirs) {
					if verb != "SELECT" && context != ours.id.String() && context != "" {
						continue // what is not seen there is not reached by the others either
					}
					if n := reach(t, pool, context, sql); n > 0 {
						t.Errorf("%s with tenant %q: %s of %s reaches %d rows", role, context, verb, rel.Name, n)
					}
				}
			}
		}
	}
	if got := everythingOf(t, db, theirs); got != untouched {
		t.Error("another's rows changed")
	}
}

// G3, functions: those that are given a job or a key find none of another tenant, and
// one that stores a job stores none for it.
func TestG3NoFunctionReachesAnotherTenantsRows(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	ours, theirs := populate(t, db), populate(t, db)
	exec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) VALUES ($1, 'default', 'k', now())`, theirs.id)
	for _, role := range []string{"outbox_producer", "outbox_api", "outbox_reader"} {
		pool := login(t, db, role, "")
		for _, context := range []string{ours.id.String(), "", "unset"} {
			for _, call := range []string{
				`outbox.cancel('` + theirs.waiting.String() + `')`, `outbox.cancel('` + theirs.closed.String() + `')`, `outbox.release('` + theirs.waiting.String() + `')`,
				`outbox.unblock_key('` + theirs.id.String() + `', 'default', 'k')`, `outbox.enqueue('greet', tenant_id => '` + theirs.id.String() + `')`,
			} {
				if n := reach(t, pool, context, `SELECT 1 WHERE `+call+` IS NOT NULL`); n > 0 {
					t.Errorf("%s with tenant %q: %s reaches another's row", role, context, call)
				}
			}
		}
	}
	all := login(t, db, "outbox_api", "")
	if n := reach(t, all, theirs.id.String(), `SELECT 1 WHERE outbox.cancel('`+theirs.waiting.String()+`') IS NOT NULL`); n != 1 {
		t.Error("the tenant itself reaches nothing: this tests nothing")
	}
}

// verbs returns the statements by which a role could get at another tenant's rows of a relation, by what each does.
// They are of columns for which the role has the privilege, if there are any: what is refused for the lack of it says
// nothing about the policies.
func verbs(t *testing.T, db *pgxpool.Pool, role string, rel relation, ours, theirs tenant) map[string]string {
	t.Helper()
	name, where := `outbox.`+rel.Name, ` WHERE `+rel.of(theirs)
	column := ask[string](t, db, `
		SELECT coalesce((SELECT attname FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = ''
			AND has_column_privilege($2, attrelid, attnum, 'UPDATE') ORDER BY attname = 'tenant_id', attnum LIMIT 1), $3)`, name, role, rel.Column)
	all := map[string]string{
		"SELECT": `SELECT 1 FROM ` + name + where,
		"UPDATE": `UPDATE ` + name + ` SET ` + column + ` = ` + column + where,
		"DELETE": `DELETE FROM ` + name + where,
		"MERGE":  `MERGE INTO ` + name + ` USING (VALUES (1)) AS v (one) ON ` + rel.of(theirs) + ` WHEN MATCHED THEN DELETE`,
		"LOCK":   `SELECT 1 FROM ` + name + where + ` FOR UPDATE`,
		"COPY":   `COPY (SELECT * FROM ` + name + where + `) TO STDOUT`,
	}
	if rel.Kind == "v" {
		return all
	}
	// Another row like one of theirs.
	all["INSERT"] = ask[string](t, db, `
		SELECT format('INSERT INTO %1$s (%2$s) OVERRIDING SYSTEM VALUE SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, %3$L)', $1::text, string_agg(quote_ident(attname), ', '),
			(SELECT to_jsonb(r) FROM `+name+` AS r`+where+` LIMIT 1))
		FROM pg_attribute WHERE attrelid = $1::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''
			AND (has_column_privilege($2, attrelid, attnum, 'INSERT') OR NOT has_any_column_privilege($2, attrelid, 'INSERT'))`, name, role)
	if rel.HasTenant || rel.HasJob { // one of ours becomes theirs
		all["MOVE"] = `UPDATE ` + name + ` SET ` + rel.of(theirs) + ` WHERE ` + rel.of(ours)
	}
	return all
}

// reach runs a statement in a transaction of a tenant that is then rolled back, and
// returns how many rows it reached; what is refused reaches none.
func reach(t *testing.T, pool *pgxpool.Pool, context, sql string) int64 {
	t.Helper()
	begin := "BEGIN"
	if context != "unset" {
		begin = "BEGIN; SET LOCAL app.tenant_id = '" + context + "'"
	}
	tx, err := pool.BeginTx(t.Context(), pgx.TxOptions{BeginQuery: begin})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(t.Context()) }()
	tag, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		if state := sqlstate(err); state != "42501" && state != "0A000" && state != "55000" && state != "42P10" {
			t.Errorf("%s: %v", sql, err)
		}
		return 0
	}
	return tag.RowsAffected()
}

// G3, connections: a pool of four that serves both tenants in turns, among them
// transactions that fail, shows each its own.
func TestG3APoolKeepsTenantsApartThroughReuse(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	tenants := []tenant{populate(t, db), populate(t, db)}
	config := login(t, db, "outbox_api", "").Config()
	config.MaxConns = 4
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	done := make(chan error)
	for worker := range 8 {
		go func() {
			for i := range 250 {
				want := tenants[(worker+i)%2].id
				err := outbox.InTenant(t.Context(), pool, want, func(tx pgx.Tx) error {
					if i%7 == 0 {
						_, err := tx.Exec(t.Context(), `SELECT 1/0`) // the transaction is aborted
						return err
					}
					rows, _ := tx.Query(t.Context(), `SELECT DISTINCT tenant_id FROM outbox.jobs`)
					seen, err := pgx.CollectRows(rows, pgx.RowTo[outbox.ID])
					if err == nil && !slices.Equal(seen, []outbox.ID{want}) {
						err = fmt.Errorf("%s sees %v", want, seen)
					}
					return err
				})
				if sqlstate(err) == "22012" {
					err = nil
				}
				if err == nil && i%5 == 0 { // outside, there is no tenant
					var n int
					if err = pool.QueryRow(t.Context(), `SELECT count(*) FROM outbox.jobs`).Scan(&n); err == nil && n > 0 {
						err = fmt.Errorf("without a tenant %d jobs are seen", n)
					}
				}
				if err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// G5: every role × relation × verb that the catalog does not grant is refused when it
// is tried. (What it grants is migrations/testdata/roles.golden.)
func TestG5WhatIsNotGrantedIsRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	populate(t, db)
	tried := 0
	for _, role := range ourRoles {
		pool := login(t, db, role, "*")
		for _, rel := range relations(t, db) {
			name := `outbox.` + rel.Name
			for privilege, sql := range map[string]string{
				"SELECT":   `SELECT * FROM ` + name,
				"INSERT":   `INSERT INTO ` + name + ` DEFAULT VALUES`,
				"UPDATE":   `UPDATE ` + name + ` SET ` + rel.Column + ` = ` + rel.Column + ` WHERE false`,
				"DELETE":   `DELETE FROM ` + name + ` WHERE false`,
				"TRUNCATE": `TRUNCATE ` + name,
			} {
				if rel.Kind == "v" && privilege != "SELECT" {
					continue
				}
				some := privilege != "TRUNCATE" && privilege != "DELETE" && ask[bool](t, db, `SELECT has_any_column_privilege($1, $2, $3)`, role, name, privilege)
				if some || ask[bool](t, db, `SELECT has_table_privilege($1, $2, $3)`, role, name, privilege) {
					continue
				}
				tried++
				wantForbidden(t, pool, sql)
			}
		}
		for _, sql := range []string{
			`CREATE TABLE outbox.mine ()`, `DROP TABLE outbox.jobs`, `ALTER TABLE outbox.jobs DISABLE ROW LEVEL SECURITY`, `SELECT outbox.secure()`,
			`CREATE POLICY mine ON outbox.jobs USING (true)`, `SET ROLE outbox_owner`, `ALTER ROLE ` + role + ` BYPASSRLS`, `CREATE FUNCTION outbox.mine() RETURNS int LANGUAGE sql RETURN 1`,
		} {
			if _, err := pool.Exec(t.Context(), sql); sqlstate(err) != "42501" {
				t.Errorf("%s: %s: got %v, want SQLSTATE 42501", role, sql, err)
			}
			tried++
		}
	}
	if tried < 100 {
		t.Errorf("%d statements were tried: this looks at the wrong place", tried)
	}
	t.Logf("%d statements are refused", tried)
}
