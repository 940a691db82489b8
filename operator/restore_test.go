package operator_test

import (
	"bytes"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/schedule"
)

// The data of a dump, in a schema that is there already, as docs/operate/backup.md says: every row comes back, that of
// a day which a migration does not make any more, too, and the audit with its chain. What stands for pg_restore
// --data-only --disable-triggers copies all tables with no trigger firing: so a row that a migration has made, and the
// page does not say to remove, is refused twice here, too.
func TestDataAloneAreRestored(t *testing.T) {
	t.Parallel()
	empty := shownBy(t, "operate/backup.md", `psql -c '(TRUNCATE [^']*)'`)
	days := shownBy(t, "operate/backup.md", "```sql\n(SELECT format\\('CREATE TABLE(?s:.*?))```")

	o, old := newRig(t)
	job := enqueue(t, old, "mail", outbox.Options{Delay: time.Hour})
	enqueue(t, old, "mail", outbox.Options{IdempotencyKey: "k", Key: outbox.KeyRules{Name: "k", Ordered: true}})
	if _, err := o.Cancel(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	exec(t, old, `CREATE TABLE outbox.history_20260101 PARTITION OF outbox.history FOR VALUES FROM ('2026-01-01 00:00:00+00') TO ('2026-01-02 00:00:00+00')`)
	exec(t, old, `UPDATE outbox.history SET finished_at = '2026-01-01 12:00:00+00'`)
	act(t, old, 3)
	wantWhole(t, o, 4)

	restored := pgtest.New(t)
	rows, err := old.Query(t.Context(), days)
	if err != nil {
		t.Fatal(err)
	}
	made, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range made {
		exec(t, restored, statement)
	}
	exec(t, restored, empty)
	copied := copyTables(t, old, restored)
	if copied["outbox.audit"] != 4 || copied["outbox.jobs"] != 1 || copied["outbox.history_20260101"] != 1 {
		t.Errorf("%d acts, %d jobs and %d of the old day were copied, want 4, 1 and 1",
			copied["outbox.audit"], copied["outbox.jobs"], copied["outbox.history_20260101"])
	}
	exec(t, restored, `SELECT outbox.secure()`)
	var forced bool
	if err := restored.QueryRow(t.Context(), `SELECT relforcerowsecurity FROM pg_class WHERE oid = 'outbox.history_20260101'::regclass`).Scan(&forced); err != nil || !forced {
		t.Errorf("the row security of the old day is forced: %t, %v", forced, err)
	}
	r := operator.New(restored)
	wantWhole(t, r, 4)
	if err := r.Pause(t.Context(), "mail"); err != nil {
		t.Fatal(err)
	}
	wantWhole(t, r, 5)
}

// A clone for staging, after the statements of docs/operate/backup.md, does nothing.
func TestACloneIsStill(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	enqueue(t, db, "mail", outbox.Options{Queue: "mail"})
	if _, err := o.CreateSchedule(t.Context(), schedule.Cron("nightly", "0 3 * * *", "UTC", outbox.Raw{KindName: "report", Payload: []byte("{}")}, schedule.Options{})); err != nil {
		t.Fatal(err)
	}
	exec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('lake')`)
	exec(t, db, `INSERT INTO outbox.operations (id, tenant_id, act, filter, per_second, matched, actor, reason, request_id)
		VALUES (outbox.uuid_v7(), '00000000-0000-0000-0000-000000000001', 'replay', '{}', 0, 1, 'ada', '', '')`)
	exec(t, db, shownBy(t, "operate/backup.md", "run by operator/restore_test.go -->\n```sql\n((?s:.*?))```"))
	var moving int
	if err := db.QueryRow(t.Context(), `
		SELECT (SELECT count(*) FROM outbox.jobs WHERE NOT EXISTS (SELECT FROM outbox.queues AS q WHERE q.queue = jobs.queue AND q.paused_at IS NOT NULL))
			+ (SELECT count(*) FROM outbox.schedules WHERE paused_at IS NULL) + (SELECT count(*) FROM outbox.sinks WHERE paused_at IS NULL)
			+ (SELECT count(*) FROM outbox.operations WHERE stopped_at IS NULL) + (SELECT count(*) FROM outbox.tokens)`).Scan(&moving); err != nil || moving != 0 {
		t.Errorf("%d things go on, %v", moving, err)
	}
}

// A person's data is gone after the statements of docs/guides/payloads.md, and other jobs stay.
func TestAPersonsDataIsDeleted(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	other := enqueue(t, db, "mail", outbox.Options{})
	hers, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: "mail", Payload: []byte(`{"to":"ada@example.org"}`)}, outbox.Options{IdempotencyKey: "ada"})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []outbox.ID{other, hers} {
		exec(t, db, `INSERT INTO outbox.job_logs (job_id, slot, epoch, line, logged_at, level, message) VALUES ($1, 0, 1, 1, now(), 'info', 'a line')`, id)
		if _, err := o.Cancel(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	exec(t, db, `SELECT outbox.publish('mails', '{"to":"ada@example.org"}'), outbox.publish('mails', '{}')`)
	exec(t, db, shownBy(t, "guides/payloads.md", "run by operator/restore_test.go -->\n```sql\n((?s:.*?))```"))
	var left string
	if err := db.QueryRow(t.Context(), `
		SELECT concat_ws(' ', (SELECT count(*) FROM outbox.history), (SELECT count(*) FROM outbox.events), (SELECT count(*) FROM outbox.job_logs),
			(SELECT count(*) FROM outbox.idempotency_keys))`).Scan(&left); err != nil || left != "1 1 1 0" {
		t.Errorf("jobs, events, lines and keys that are left: %s, %v; want 1 1 1 0", left, err)
	}
}

// shownBy returns what the first group of the pattern matches in a page of the manual.
func shownBy(t *testing.T, page, pattern string) string {
	t.Helper()
	text, err := os.ReadFile("../docs/" + page)
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(pattern).FindSubmatch(text)
	if found == nil {
		t.Fatalf("docs/%s shows no more what this test runs: %s", page, pattern)
	}
	return string(found[1])
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
