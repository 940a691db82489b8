package main

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A dry run of what is named looks at it.
func TestADryRunOfDeadLettersLooks(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	dead, late := strings.TrimSpace(ok(t, direct, "enqueue", "mail")), strings.TrimSpace(ok(t, direct, "enqueue", "mail"))
	bury(t, db, "mail")
	sqlExec(t, db, `UPDATE outbox.jobs SET deadline = now() - interval '1 second' WHERE id = $1`, late)
	waiting, absent := strings.TrimSpace(ok(t, direct, "enqueue", "mail")), outbox.NewID().String()
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for act, want := range map[string]string{"replay": "would replay " + dead + "\n", "dismiss": "would dismiss " + dead + "\nwould dismiss " + late + "\n"} {
			r := posthaste(t, way, "", "dlq", act, "--dry-run", dead, late, waiting, absent)
			if r.out != want || r.code != exitFailed || !strings.Contains(r.errOut, act+" job "+waiting+": it is pending") || !strings.Contains(r.errOut, absent) && name == "directly" {
				t.Errorf("%s, %s: %+v, want %q", name, act, r, want)
			}
			if act == "replay" && !strings.Contains(r.errOut, "deadline has passed") {
				t.Errorf("%s: %s says nothing of the deadline", name, r.errOut)
			}
		}
		if out := ok(t, way, "dlq", "replay", "--dry-run", dead, "--payload", `{"n": 2}`); out != "would replay "+dead+"\n" {
			t.Errorf("%s: a dry run with a payload said %q", name, out)
		}
		if r := posthaste(t, way, "", "dlq", "replay", "--dry-run", dead, "--payload", "{"); r.code != exitUsage || r.out != "" {
			t.Errorf("%s: with a payload that is no JSON: %+v", name, r)
		}
		for _, id := range []string{late, waiting, absent} {
			if r := posthaste(t, way, "", "dlq", "replay", "--dry-run", id, "--payload", "{}"); r.code != exitFailed || r.out != "" {
				t.Errorf("%s: a payload for %s: %+v, want it refused", name, id, r)
			}
		}
	}
	if got := rows(t, direct, "dlq", "list"); len(got) != 2 || len(rows(t, direct, "audit", "--act", "job.replay")) != 0 {
		t.Errorf("dry runs have left %v", got)
	}
}

func TestDryRunsOfKeysAndSchedules(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	ok(t, direct, "enqueue", "mail", "--key", "k")
	sqlExec(t, db, `UPDATE outbox.jobs SET status = 'blocked'`)
	sqlExec(t, db, `INSERT INTO outbox.keys (tenant_id, queue, key, parked_at) SELECT tenant_id, queue, key, now() FROM outbox.jobs`)
	const other = "01976f0e-7a5c-7d3e-8f4b-0123456789ab"
	sqlExec(t, db, `INSERT INTO outbox.schedules (tenant_id, name, every, kind, payload, next_at)
		SELECT t, n, '1 hour', 'mail', '{}', now() + interval '1 hour'
		FROM (VALUES ('00000000-0000-0000-0000-000000000001'::uuid, 'ours'), ($1::uuid, 'theirs')) AS s(t, n)`, other)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		if out := ok(t, way, "keys", "unblock", "--dry-run", "k"); out != "would unblock: k of queue default (parked; blocked: 1; dead letters: 0)\n" {
			t.Errorf("%s: unblock said %q", name, out)
		}
		if r := posthaste(t, way, "", "keys", "unblock", "--dry-run", "none"); r.code != exitFailed || r.out != "" {
			t.Errorf("%s: unblock of none: %+v", name, r)
		}
		if out := ok(t, way, "schedules", "delete", "--dry-run", "ours"); out != "would delete: ours\n" {
			t.Errorf("%s: delete said %q", name, out)
		}
		ok(t, way, "schedules", "delete", "--dry-run", "--tenant", other, "theirs")
		for _, args := range [][]string{{"none"}, {"theirs"}, {"--tenant", other, "ours"}} {
			if r := posthaste(t, way, "", append([]string{"schedules", "delete", "--dry-run"}, args...)...); r.code != exitFailed || !strings.Contains(r.errOut, "schedule not found") {
				t.Errorf("%s: delete of %v: %+v", name, args, r)
			}
		}
	}
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "one", "--tenant", other, "-c", "admin.read"))
	ok(t, through, "schedules", "delete", "--dry-run", "theirs") // without a tenant it is the token's own
	if got := rows(t, direct, "schedules", "list"); len(got) != 2 || len(rows(t, direct, "keys", "list", "--parked")) != 1 || len(rows(t, direct, "audit", "--act", "key.unblock")) != 0 {
		t.Errorf("dry runs have left %v", got)
	}
}
