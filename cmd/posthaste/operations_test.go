package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// An act that is detached is an operation, which is listed, stopped and resumed by the database and through the API
// alike.
func TestOperations(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for range 2 {
		ok(t, direct, "enqueue", "mail")
	}
	bury(t, db, "mail")
	var ids []string
	for _, way := range []env{direct, through} {
		ids = append(ids, strings.TrimSpace(ok(t, way, "dlq", "replay", "--all", "--rate", "0.5", "--reason", "again", "--detach", "--yes")))
	}
	list := ok(t, direct, "operations", "list", "-o", "json")
	if diff := cmp.Diff(values(t, list), values(t, ok(t, through, "operations", "list", "-o", "json"))); diff != "" || strings.Count(list, `"matched": 2`) != 2 || !strings.Contains(list, `"reason": "again"`) {
		t.Errorf("through the API, of %s (-direct +through):\n%s", list, diff)
	}
	for i, way := range []env{direct, through} {
		if out := ok(t, way, "operations", "stop", ids[1-i], "--reason", "too fast"); !strings.Contains(out, "stopped") {
			t.Errorf("stopped: %s", out)
		}
		if out := ok(t, way, "operations", "resume", ids[1-i]); !strings.Contains(out, "running") {
			t.Errorf("resumed: %s", out)
		}
	}
	o := operator.New(db)
	for range 2 { // a step each
		if _, err := o.StepOperation(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, way := range []env{direct, through} {
		if out := ok(t, way, "operations", "show", ids[0], "-o", "json"); !strings.Contains(out, `"done": 1`) {
			t.Errorf("after a step: %s", out)
		}
	}
}

// As many operations are listed as were asked for, on as many pages as that takes.
func TestOperationsAreListedAsManyAsAskedFor(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.operations (id, act, filter, per_second, matched, actor, reason, request_id)
		SELECT ('01976f0e-7a5c-7d3e-8f4b-'||lpad(to_hex(n), 12, '0'))::uuid, 'replay', '{"kind":"none"}', 0, 1, 'somebody', '', '' FROM generate_series(1, 405) AS n`)
	id := func(n int) string { return fmt.Sprintf("01976f0e-7a5c-7d3e-8f4b-%012x", n) }
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for line, want := range map[string]struct{ n, first, last int }{
			"":                               {50, 405, 356},
			"--limit 1":                      {1, 405, 405},
			"--limit 200":                    {200, 405, 206},
			"--limit 403":                    {403, 405, 3},
			"--limit 1000":                   {405, 405, 1},
			"--limit 3 --before " + id(356):  {3, 355, 353},
			"--limit 1000 --before " + id(3): {2, 2, 1},
		} {
			got := rows(t, way, append([]string{"operations", "list"}, strings.Fields(line)...)...)
			if len(got) != want.n || got[0]["id"] != id(want.first) || got[len(got)-1]["id"] != id(want.last) {
				t.Errorf("%s, %s: %d operations from %v to %v, want %d from %s to %s", name, line, len(got), got[0]["id"], got[len(got)-1]["id"], want.n, id(want.first), id(want.last))
			}
		}
		for line, says := range map[string]string{
			"operations list --limit 0": "--limit is 0: want at least 1", "operations list --limit -1": "--limit is -1: want at least 1", "operations list --before x": "--before",
			"dlq groups --limit 201": "--limit is 201: want 1 to 200", "dlq groups --limit 0": "--limit is 0: want 1 to 200",
		} {
			if r := posthaste(t, way, "", strings.Fields(line)...); r.code != exitUsage || r.out != "" || !strings.Contains(r.errOut, says) {
				t.Errorf("%s, %s: %+v, want exit status 2 and %q", name, line, r, says)
			}
		}
	}
}

// refused wants a command to fail, and to say why.
func refused(t *testing.T, way env, says string, args ...string) {
	t.Helper()
	if r := posthaste(t, way, "", args...); r.code == exitOK || !strings.Contains(r.errOut, says) {
		t.Errorf("posthaste %s: exit status %d, want it refused: %s\n%s%s", strings.Join(args, " "), r.code, says, r.out, r.errOut)
	}
}

// An act on open jobs is previewed and started by the database and through the API alike: it means the jobs that were
// counted, and none that came later.
func TestOperationsOnOpenJobs(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	o := operator.New(db)
	for act, c := range map[string]struct {
		way    env
		status outbox.Status
	}{"cancel": {through, outbox.Cancelled}, "release": {through, outbox.Pending}, "retry": {direct, outbox.Pending}, "edit": {through, outbox.Pending}} {
		start := []string{"operations", "start", act, "--kind", act}
		if act == "edit" {
			start = append(start, "--set-queue", "slow", "--set-priority", "-7", "--set-run-at", "2026-01-31T09:00:00Z")
		}
		enqueue := func() outbox.ID {
			id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: act, Payload: []byte("1")}, outbox.Options{Delay: time.Hour, Hold: act == "release"})
			if err != nil {
				t.Fatal(err)
			}
			return id
		}
		ids := []outbox.ID{enqueue(), enqueue()}
		would := ok(t, c.way, append(start, "--dry-run")...)
		_, asOf, found := strings.Cut(strings.TrimSpace(would), "--as-of ")
		if !strings.HasPrefix(would, "would "+act+" 2\n  2 ") || !found {
			t.Fatalf("%s: a dry run says %s", act, would)
		}
		late := enqueue()
		refused(t, c.way, "--yes", append(start, "--as-of", asOf)...)
		op := strings.TrimSpace(ok(t, c.way, append(start, "--as-of", asOf, "--rate", "10000", "--reason", "wrong campaign", "--yes")...))
		for range 3 {
			if _, err := o.StepOperation(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if out := ok(t, c.way, "operations", "show", op, "-o", "json"); !strings.Contains(out, `"done": 2`) || !strings.Contains(out, `"kind": "`+act+`"`) || !strings.Contains(out, `"wrong campaign"`) {
			t.Errorf("%s: %s", act, out)
		}
		for _, id := range append(ids, late) {
			job, err := o.Job(t.Context(), id)
			if err != nil {
				t.Fatal(err)
			}
			done := job.Status == c.status
			switch act {
			case "retry":
				done = !job.RunAt.After(time.Now())
			case "edit":
				done = !job.RunAt.After(time.Now()) && job.Queue == "slow" && job.Priority == -7
			}
			if done != (id != late) {
				t.Errorf("%s: job %s is %s at %s, want it done: %t", act, id, job.Status, job.RunAt, id != late)
			}
		}
	}
	for says, args := range map[string][]string{
		"no jobs selected":        {"cancel"},
		"--as-of is empty":        {"cancel", "--all", "--as-of", ""},
		"want created":            {"release", "--status", "pending"},
		"--rate is":               {"cancel", "--all", "--rate", "0"},
		"--kind is empty":         {"cancel", "--kind", ""},
		"nothing to edit":         {"edit", "--all"},
		"--set-priority":          {"edit", "--all", "--set-priority", "40000"},
		"--set-queue":             {"edit", "--key", "k", "--set-queue", "q"},
		"is not one that a count": {"cancel", "--all", "--as-of", "yesterday", "--yes"},
	} {
		for _, way := range []env{direct, through} {
			refused(t, way, says, append([]string{"operations", "start"}, args...)...)
		}
	}
}

// An operation that stores the jobs it concerns, because they are many, says how many it has stored.
func TestAnOperationThatCollectsItsJobsSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.operations (id, tenant_id, act, open_act, next_at, open_at, filter, per_second, matched, actor, reason, request_id)
		VALUES ('01976f0e-7a5c-7d3e-8f4b-000000000001', NULL, 'replay', 'collect cancel', 'infinity', now(), '{"kind":"mail","statuses":["pending"],"as_of":"3:3:@0","collected":50000}', 0, 120000, 'ada', '', '')`)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		got := rows(t, way, "operations", "list")
		if len(got) != 1 || got[0]["state"] != "running" || got[0]["collected"] != 50000.0 {
			t.Errorf("%s: %v, want it running, with 50 000 jobs collected", name, got)
		}
		if out := ok(t, way, "operations", "show", "01976f0e-7a5c-7d3e-8f4b-000000000001"); !strings.Contains(out, "50000") {
			t.Errorf("%s:\n%s\nwant 50000 in it", name, out)
		}
	}
}
