package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

func TestKeysListShowUnblock(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	e := env{"DATABASE_URL": url}
	rows := func(args ...string) (rows []map[string]any) {
		t.Helper()
		if err := json.Unmarshal([]byte(ok(t, e, append(args, "-o", "json")...)), &rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	ok(t, e, "enqueue", "--key", "order 7", "greet")
	if got := rows("keys", "list"); len(got) != 0 {
		t.Errorf("keys = %v, want none: nothing is blocked", got)
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if _, err := conn.Exec(t.Context(), `UPDATE outbox.jobs SET status = 'blocked';
		INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) SELECT tenant_id, queue, key, now() FROM outbox.jobs`); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"keys", "list"}, {"keys", "list", "--parked", "--queue", "default"}, {"keys", "show", "order 7"}} {
		got := rows(args...)
		if len(got) != 1 || got[0]["key"] != "order 7" || got[0]["blocked"] != 1.0 || got[0]["parked_since"] == nil {
			t.Errorf("%s: got %v, want the parked key with its blocked job", strings.Join(args, " "), got)
		}
	}
	if got, want := ok(t, e, "keys", "unblock", "order 7"), "unblocked: order 7 of queue default (dead letters retried: 0)\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := rows("keys", "show", "order 7"); len(got) != 1 || got[0]["waiting"] != 1.0 || got[0]["parked_since"] != nil {
		t.Errorf("got %v, want the key with a waiting job, not parked", got)
	}
}
