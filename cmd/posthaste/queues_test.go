package main

import (
	"encoding/json"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestQueuesListPauseResume(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	queues := func() map[string]map[string]any {
		var rows []map[string]any
		if err := json.Unmarshal([]byte(ok(t, e, "queues", "list", "-o", "json")), &rows); err != nil {
			t.Fatal(err)
		}
		byName := map[string]map[string]any{}
		for _, row := range rows {
			byName[row["queue"].(string)] = row
		}
		return byName
	}
	ok(t, e, "enqueue", "greet")
	ok(t, e, "queues", "pause", "mail")
	got := queues()
	if got["default"]["pending"] != 1.0 || got["default"]["paused_since"] != nil || got["mail"]["paused_since"] == nil {
		t.Errorf("got %v, want a pending job in default and mail paused", got)
	}
	ok(t, e, "queues", "resume", "mail")
	if got := queues(); got["mail"] != nil {
		t.Errorf("got %v, want mail gone: it has no jobs and is not paused", got)
	}
}
