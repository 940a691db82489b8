package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// Directly and through the API.
func TestSchedulesCreateChange(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for i, way := range []env{direct, through} {
		name := []string{"direct", "through"}[i]
		made := ok(t, way, "schedules", "create", name, "--kind", "mail", "--payload", `{"n":1}`, "--cron", "30 7 * * *", "--zone", "Europe/Berlin", "--queue", "post", "--backoff", "1s,2s",
			"--deadline", "2h", "--header", "a=b,c", "--key", "k", "--ordered", "--hold")
		if !strings.HasPrefix(made, "created: "+name+", next tick at 20") || !strings.Contains(made, ":30:00Z (--zone Europe/Berlin)\n") {
			t.Errorf("create says %q", made)
		}
		if out := ok(t, way, "schedules", "change", name, "--every", "90m", "--unset", "queue", "--hold=false", "--unset", "backoff", "--timeout", "0s"); !strings.HasPrefix(out, "changed: "+name+", next tick at 20") {
			t.Errorf("change says %q", out)
		}
		for _, args := range [][]string{
			{"change", name, "--cron", "61 0 * * *"}, {"change", name, "--zone", "UTC"}, {"change", name, "--every", "x"}, {"change", name, "--queue", "a b"}, {"change", name, "--unset", "kind"}, {"create", "other", "--every", "1h"},
		} {
			if r := posthaste(t, way, "", append([]string{"schedules"}, args...)...); r.code != exitUsage {
				t.Errorf("%v: %+v, want a usage error", args, r)
			}
		}
		if r := posthaste(t, way, "", "schedules", "create", name, "--kind", "mail", "--every", "1h"); r.code != exitFailed {
			t.Errorf("create of one that is there: %+v", r)
		}
		r := posthaste(t, way, "", "schedules", "change", name, "--content-type", "application/json")
		if want := name == "direct"; (r.code == exitOK) != want || !want && (r.code != exitUsage || !strings.Contains(r.errOut, "--content-type")) {
			t.Errorf("%s: a content type without a payload: %+v", name, r)
		}
		if r := posthaste(t, way, "", "schedules", "change", "none", "--priority", "1"); r.code != exitFailed {
			t.Errorf("change of none: %+v", r)
		}
	}
	if out := ok(t, direct, "schedules", "create", "other", "--kind", "mail", "--cron", "30 7 * * *"); !strings.HasSuffix(out, "T07:30:00Z (--zone UTC, the default)\n") {
		t.Errorf("create without a zone says %q", out)
	}
	ok(t, direct, "schedules", "delete", "other")
	if r := posthaste(t, direct, "", "schedules", "change", "direct", "--cron", "61 0 * * *"); !strings.Contains(r.errOut, `--cron minute is "61"`) || strings.Count(r.errOut, "direct") != 1 {
		t.Errorf("a mistake is named as %q, want the schedule's name once", r.errOut)
	}
	got, err := db.Query(t.Context(), `SELECT concat_ws(' ', name, every, queue, coalesce(hold, false), cardinality(backoff), deadline, headers ->> 'a', key, ordered, convert_from(payload, 'UTF8'))
		FROM outbox.schedules WHERE set_by IS NOT NULL ORDER BY name`)
	if err != nil {
		t.Fatal(err)
	}
	stored, err := pgx.CollectRows(got, pgx.RowTo[string])
	want := []string{`direct 01:30:00 default f 02:00:00 b,c k t {"n":1}`, `through 01:30:00 default f 02:00:00 b,c k t {"n":1}`}
	if diff := cmp.Diff(want, stored); diff != "" || err != nil {
		t.Errorf("stored (%v, -want +got):\n%s", err, diff)
	}
}

func TestSchedulesListPauseResumeRunDelete(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	_, err = conn.Exec(t.Context(), `
		INSERT INTO outbox.schedules (name, expression, time_zone, kind, payload, next_at) VALUES ('report', '0 7 * * *', 'Europe/Berlin', 'mail', '{}', '2030-01-01Z');
		INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('rates', '90 minutes', 'rates', '{}', '2030-01-01Z')`)
	if err := conn.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	schedules := func() map[string]map[string]any {
		var rows []map[string]any
		if err := json.Unmarshal([]byte(ok(t, e, "schedules", "list", "-o", "json")), &rows); err != nil {
			t.Fatal(err)
		}
		byName := map[string]map[string]any{}
		for _, row := range rows {
			byName[row["name"].(string)] = row
		}
		return byName
	}
	got := schedules()
	if got["report"]["timing"] != "0 7 * * *" || got["report"]["zone"] != "Europe/Berlin" || got["rates"]["timing"] != "every 1h30m" || got["report"]["paused_since"] != nil || got["report"]["last_at"] != nil {
		t.Errorf("got %v, want both with their timing", got)
	}
	if next, err := time.Parse(time.RFC3339, got["rates"]["next_at"].(string)); err != nil || next.Year() != 2030 {
		t.Errorf("next_at = %v, want the tick of 2030", got["rates"]["next_at"])
	}
	if out := ok(t, e, "schedules", "pause", "report"); out != "paused: report\n" {
		t.Errorf("pause says %q", out)
	}
	if got := schedules(); got["report"]["paused_since"] == nil || got["rates"]["paused_since"] != nil {
		t.Errorf("got %v, want report paused", got)
	}
	id := strings.TrimSpace(ok(t, e, "schedules", "run", "report"))
	if out := ok(t, e, "jobs", "show", id); !strings.Contains(out, "mail") {
		t.Errorf("the job that run enqueued is %s", out)
	}
	ok(t, e, "schedules", "resume", "report")
	if got := schedules(); got["report"]["paused_since"] != nil {
		t.Errorf("got %v, want none paused", got)
	}
	ok(t, e, "schedules", "delete", "report")
	if got := schedules(); len(got) != 1 {
		t.Errorf("got %v, want report gone", got)
	}
}

// More schedules than a page has are listed, all of them.
func TestSchedulesAreListedPageAfterPage(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at)
		SELECT '00000000-0000-0000-0000-000000000001', to_char(n, '"s"000000'), interval '1 hour', 'mail', '{}', now() FROM generate_series(1, 10001) AS n`)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		got := rows(t, way, "schedules", "list")
		if len(got) != 10_001 || got[10_000]["name"] != "s 010001" {
			t.Errorf("%s: %d schedules, want all 10 001, in order", name, len(got))
		}
	}
}
