package main

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What is wrong is the same directly and through the API, and scripts learn it from the exit status.
func TestProblemsAreListed(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	if r := posthaste(t, direct, "", "problems", "--tenant", "00000000-0000-0000-0000-000000000001"); r.code != exitOK || r.out != "nothing is wrong\n" {
		t.Errorf("of no jobs: %+v", r)
	}
	ok(t, direct, "enqueue", "doomed")
	bury(t, db, "doomed")
	ok(t, direct, "enqueue", "orphan")
	ok(t, direct, "enqueue", "held.up", "--queue", "mail")
	ok(t, direct, "queues", "pause", "mail")
	var listed []any
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		r := posthaste(t, way, "", "problems", "-o", "json")
		if r.code != exitFailed || !strings.Contains(r.errOut, " problems\n") {
			t.Errorf("%s: exit status %d, %s, want 1 and the number of problems", name, r.code, r.errOut)
		}
		listed = append(listed, ofJobs(values(t, r.out)))
		r = posthaste(t, way, "", "problems")
		for _, want := range []string{
			"problem: 1 job of kind doomed failed: http_500.\n  $ posthaste dlq replay --fingerprint f1 --kind doomed --failed-until 20",
			"problem: 1 job of kind orphan in queue default is due, and no present dispatcher of the queue has a handler.\n  Start a program",
			"warning: Queue mail is paused, and 1 job in it waits.\n  $ posthaste queues resume mail\n",
		} {
			if !strings.Contains(r.out, want) {
				t.Errorf("%s it printed\n%s\nwithout\n%s", name, r.out, want)
			}
		}
	}
	if diff := cmp.Diff(listed[0], listed[1]); diff != "" {
		t.Errorf("the two ways differ:\n%s", diff)
	}
	if found := listed[0].([]any); len(found) != 3 || found[0].(map[string]any)["act"] == nil && found[1].(map[string]any)["act"] == nil {
		t.Errorf("found %v", found)
	}
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "other", "-c", "admin.read", "--tenant", "01976f0e-7a5c-7d3e-8f4b-0123456789ab"))
	if r := posthaste(t, through, "", "problems", "-o", "json"); r.code != exitOK || r.out != "[]\n" {
		t.Errorf("of another tenant: %+v", r)
	}
}

// ofJobs leaves out what is wrong with the installation: the server of tests is not durable.
func ofJobs(listed any) any {
	var kept []any
	for _, one := range listed.([]any) {
		if kind := one.(map[string]any)["kind"]; kind != "installation" && kind != "late" {
			kept = append(kept, one)
		}
	}
	return kept
}

func TestDoctorAsksTheServer(t *testing.T) {
	t.Parallel()
	_, direct, through := ways(t)
	questions := func(way env) (all []any) {
		for _, row := range values(t, posthaste(t, way, "", "doctor", "-o", "json").out).([]any) {
			all = append(all, row.(map[string]any)["question"])
		}
		return all
	}
	want, got := questions(direct), questions(through)
	if diff := cmp.Diff(want, got); diff != "" || len(got) < 5 {
		t.Errorf("it asks directly (-) and through the API (+):\n%s", diff)
	}
	if r := posthaste(t, through, "", "doctor", "--listen-url", "postgres://x/y"); r.code != exitUsage {
		t.Errorf("with a --listen-url: %+v", r)
	}
	through["OUTBOX_API_TOKEN"] = strings.TrimSpace(ok(t, direct, "tokens", "create", "one", "-c", "admin.read"))
	if r := posthaste(t, through, "", "doctor"); r.code != exitFailed || !strings.Contains(r.errOut, "forbidden") {
		t.Errorf("for one tenant: %+v", r)
	}
}

func TestKindsAreListed(t *testing.T) {
	t.Parallel()
	db, direct, _ := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.workers (worker, version, queues, concurrency, kinds, hearing, seen_at)
		VALUES ('a', 'v1', '{default,mail}', '{1,1}', '{greet,pay}', true, now()), ('b', 'v1', '{slow}', '{1}', '{greet}', true, now()), ('c', 'v1', '{slow}', '{1}', '{pay}', true, now() - interval '5 minutes')`)
	got := rows(t, direct, "kinds")
	if len(got) != 2 || got[0]["kind"] != "greet" || got[0]["dispatchers"] != 2.0 || got[0]["queues"] != "default mail slow" || got[0]["wait_p99"] != nil ||
		got[1]["kind"] != "pay" || got[1]["dispatchers"] != 1.0 {
		t.Errorf("kinds are %v", got)
	}
}

func TestTheVersionIsForScriptsToo(t *testing.T) {
	t.Parallel()
	got := rows(t, env{}, "version")
	if len(got) != 1 || got[0]["version"] == "" || got[0]["go"] != runtime.Version() || got[0]["os"] != runtime.GOOS {
		t.Errorf("the version is %v", got)
	}
}
