package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

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
