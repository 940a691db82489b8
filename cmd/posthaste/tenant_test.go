package main

import (
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A tenant is meant by its id, in lists and in acts, and no other is touched.
func TestATenantIsMeant(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	const mine, other = "01976f0e-7a5c-7d3e-8f4b-0123456789ab", "01976f0e-7a5c-7d3e-8f4b-0123456789ac"
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		sqlExec(t, db, `DELETE FROM outbox.jobs`)
		kind := name[:4] + "-mail"
		for _, tenant := range []string{mine, other} {
			ok(t, direct, "enqueue", kind, "--tenant", tenant, "--key", "k")
			ok(t, direct, "enqueue", kind+"-dead", "--tenant", tenant)
		}
		bury(t, db, kind+"-dead")
		sqlExec(t, db, `UPDATE outbox.jobs SET status = 'blocked' WHERE key = 'k'`)
		for line, want := range map[string]int{
			"jobs list --status blocked,dead --tenant " + mine: 2, "jobs list --limit 1000 --kind " + kind + " --tenant " + mine: 1, "dlq list --tenant " + mine: 1,
			"dlq groups --tenant " + mine: 1, "keys list --tenant " + mine: 1, "keys list": 2,
		} {
			if got := rows(t, way, strings.Fields(line)...); len(got) != want {
				t.Errorf("%s, %s: %v, want %d", name, line, got, want)
			}
		}
		for _, act := range []string{"jobs cancel", "jobs retry", "dlq replay"} {
			if out := ok(t, way, append(strings.Fields(act), "--tenant", mine, "--dry-run")...); !strings.HasSuffix(out, " 1\n") {
				t.Errorf("%s, %s: a dry run said %q, want one", name, act, out)
			}
		}
		if out := ok(t, way, "jobs", "cancel", "--kind", kind, "--tenant", mine); out != "cancel: 1 done, 0 passed over\n" {
			t.Errorf("%s: cancel said %q", name, out)
		}
		if got := listed(t, direct, "--kind", kind, "--status", "cancelled"); len(got) == 0 || got[0]["tenant"] != mine || len(listed(t, direct, "--kind", kind, "--status", "blocked")) != 1 {
			t.Errorf("%s: cancelled are %v, want those of %s", name, got, mine)
		}
		for _, act := range []string{"jobs cancel", "dlq dismiss"} {
			r := posthaste(t, way, "", append(strings.Fields(act), "--kind", kind, "--tenant", outbox.ID{}.String())...)
			if r.code != exitUsage || !strings.Contains(r.errOut, "no tenant's id") {
				t.Errorf("%s, %s of the id that is any: %+v", name, act, r)
			}
		}
	}
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "one", "--tenant", mine, "-c", "jobs.read,jobs.cancel"))
	if r := posthaste(t, through, "", "jobs", "cancel", "--kind", "x", "--tenant", other); r.code != exitFailed || !strings.Contains(r.errOut, "forbidden") {
		t.Errorf("another tenant's: %+v", r)
	}
}

// A login without a tenant sees no row: it is refused, rather than to find that there is nothing to do.
func TestALoginThatSeesNoTenantIsRefused(t *testing.T) {
	t.Parallel()
	owner := pgtest.URL(t)
	ok(t, env{"DATABASE_URL": owner}, "enqueue", "mail")
	for role, want := range map[string]bool{"outbox_reader": false, "outbox_worker": true} {
		login := pgtest.LoginURL(t, owner, role)
		if r := posthaste(t, env{"DATABASE_URL": login}, "", "jobs", "list"); (r.code == exitOK) != want || !want && !strings.Contains(r.errOut, "add ?app.tenant_id=* or") {
			t.Errorf("a member of %s: %+v, want it to see jobs: %t", role, r, want)
		}
		if got := rows(t, env{"DATABASE_URL": login + "&app.tenant_id=*"}, "jobs", "list"); len(got) != 1 {
			t.Errorf("a member of %s for all tenants sees %v, want the job", role, got)
		}
	}
}
