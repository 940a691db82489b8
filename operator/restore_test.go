package operator_test

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The data of a dump, in a schema that is there already, as docs/operate/operations.md says: every row comes back, and
// the audit with its chain. What stands for pg_restore --data-only --disable-triggers copies all tables with no trigger
// firing: so a row that a migration has made, and the page does not say to remove, is refused twice here, too.
func TestDataAloneAreRestored(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/operate/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	empty := regexp.MustCompile(`psql -c '(TRUNCATE [^']*)'`).FindSubmatch(page)
	if empty == nil {
		t.Fatal("docs/operate/operations.md says no more what is to be emptied")
	}

	o, old := newRig(t)
	job := enqueue(t, old, "mail", outbox.Options{Delay: time.Hour})
	enqueue(t, old, "mail", outbox.Options{IdempotencyKey: "k", Key: outbox.KeyRules{Name: "k", Ordered: true}})
	if _, err := o.Cancel(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	act(t, old, 3)
	wantWhole(t, o, 4)

	restored := pgtest.New(t)
	exec(t, restored, string(empty[1]))
	rows := copyTables(t, old, restored)
	if rows["outbox.audit"] != 4 || rows["outbox.jobs"] != 1 {
		t.Errorf("%d acts and %d jobs were copied, want 4 and 1", rows["outbox.audit"], rows["outbox.jobs"])
	}
	r := operator.New(restored)
	wantWhole(t, r, 4)
	if err := r.Pause(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, r, 5)
}

// copyTables copies all rows of the schema, and the values of its sequences, with no trigger firing.
func copyTables(t *testing.T, from, to *pgxpool.Pool) (rows map[string]int64) {
	t.Helper()
	source, err := from.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer source.Release()
	target, err := to.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer target.Release()
	if _, err := target.Exec(t.Context(), `SET session_replication_role = replica`); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = target.Exec(t.Context(), `RESET session_replication_role`) }()
	read := func(into any, sql string) {
		if err := source.QueryRow(t.Context(), sql).Scan(into); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	list := func(kind string) (names []string) {
		read(&names, `SELECT array_agg(format('%I.%I', relnamespace::regnamespace, relname) ORDER BY relname)
			FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = '`+kind+`'`)
		return names
	}
	rows = map[string]int64{}
	for _, table := range list("r") {
		var data bytes.Buffer
		if _, err := source.Conn().PgConn().CopyTo(t.Context(), &data, `COPY `+table+` TO STDOUT`); err != nil {
			t.Fatal(err)
		}
		tag, err := target.Conn().PgConn().CopyFrom(t.Context(), &data, `COPY `+table+` FROM STDIN`)
		if err != nil {
			t.Fatalf("%s: %v", table, err)
		}
		rows[table] = tag.RowsAffected()
	}
	for _, sequence := range list("S") {
		var last int64
		read(&last, `SELECT last_value FROM `+sequence)
		exec(t, to, `SELECT setval($1::regclass, $2, true)`, sequence, last)
	}
	return rows
}
