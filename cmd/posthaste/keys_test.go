package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// More keys than a page has are listed page after page.
func TestManyKeysAreListed(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.jobs (id, kind, payload, key, status, run_at)
		SELECT outbox.uuid_v7(), 'mail', '', 'k' || i, 'blocked', now() - i / 3 * interval '1 second' FROM generate_series(1, 450) AS i`)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for limit, want := range map[string]int{"430": 430, "1000": 450} {
			seen := map[any]bool{}
			got := rows(t, way, "keys", "list", "--limit", limit)
			for _, k := range got {
				seen[k["key"]] = true
			}
			if len(got) != want || len(seen) != want || got[0]["key"] != "k450" {
				t.Errorf("%s: got %d keys, %d of them different, want %d", name, len(got), len(seen), want)
			}
		}
	}
	if r := posthaste(t, direct, "", "keys", "list", "--limit", "0"); r.code != exitUsage {
		t.Errorf("a limit of 0: %+v", r)
	}
}

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

func TestUnblockingManyJobsIsConfirmed(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for _, way := range []env{direct, through} {
		for _, tenant := range []string{outbox.RootTenant.String(), "00000000-0000-0000-0000-00000000000a"} {
			sqlExec(t, db, `DELETE FROM outbox.jobs`)
			sqlExec(t, db, `DELETE FROM outbox.keys`)
			for range 3 {
				ok(t, direct, "enqueue", "--key", "k", "--tenant", tenant, "greet")
			}
			sqlExec(t, db, `UPDATE outbox.jobs SET status = 'blocked'`)
			sqlExec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) SELECT DISTINCT tenant_id, queue, key, now() FROM outbox.jobs`)
			r := posthaste(t, way, "", "keys", "unblock", "k", "--tenant", tenant)
			if want := "(parked; blocked: 3; dead letters: 0): retry, or let run, up to 3 jobs? Not a terminal"; r.code != exitUsage || !strings.Contains(r.errOut, want) {
				t.Errorf("without --yes: %+v, want %q", r, want)
			}
			if got := rows(t, direct, "keys", "list", "--parked"); len(got) != 1 {
				t.Errorf("parked keys are %v, want the one as before", got)
			}
			ok(t, way, "keys", "unblock", "k", "--tenant", tenant, "--yes")
			if got := rows(t, direct, "keys", "list", "--parked"); len(got) != 0 {
				t.Errorf("parked keys are %v, want none", got)
			}
		}
	}
}
