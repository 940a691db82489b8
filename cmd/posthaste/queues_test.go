package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
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
	for _, verb := range []string{"pause", "resume"} {
		if r := posthaste(t, e, "", "queues", verb, "mail "); r.code != exitUsage || !strings.Contains(r.errOut, `QUEUE is "mail ": byte 4 is " "`) {
			t.Errorf("%s of a name that no job can have: %+v, want exit status 2", verb, r)
		}
	}
}

// A queue may be paused before its first job, so a name that nothing has used is no mistake, but worth a remark.
func TestQueuesThatNothingHasUsed(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	ok(t, e, "enqueue", "greet", "--queue", "mail")
	const note = "no open job is in queue mial, and it was neither paused nor limited: did you mean mail?"
	for _, c := range []struct {
		args []string
		note bool
	}{
		{[]string{"pause", "mail"}, false},
		{[]string{"resume", "mial"}, true},
		{[]string{"pause", "mial"}, true},
		{[]string{"pause", "mial"}, false}, // it is paused now
		{[]string{"resume", "mial"}, false},
		{[]string{"limit", "mial", "--max-running", "1"}, true},
		{[]string{"limit", "mial", "--no-max-running"}, false},
	} {
		r := posthaste(t, e, "", append([]string{"queues"}, c.args...)...)
		if r.code != exitOK || strings.Contains(r.errOut, note) != c.note || !c.note && r.errOut != "" || strings.Contains(r.out, "note") {
			t.Errorf("queues %v: %+v, want the note: %t", c.args, r, c.note)
		}
	}
}

func TestQueuesLimit(t *testing.T) {
	t.Parallel()
	e := env{"DATABASE_URL": pgtest.URL(t)}
	for _, step := range []struct {
		flags []string
		want  string
	}{
		{[]string{"--max-running", "5", "--rate", "100/m"}, "mail: 5 running at once, 100 starts in 1m\n"},
		{[]string{"--rate", "3/1.5s"}, "mail: 5 running at once, 3 starts in 1.5s\n"},
		{[]string{"--no-max-running"}, "mail: 3 starts in 1.5s\n"},
		{[]string{"--no-rate"}, "mail: no limits\n"},
		{[]string{"--max-running", "7"}, "mail: 7 running at once\n"},
	} {
		if got := ok(t, e, append([]string{"queues", "limit", "mail"}, step.flags...)...); got != step.want {
			t.Errorf("%v printed %q, want %q", step.flags, got, step.want)
		}
	}
	if got := ok(t, e, "queues", "list", "-o", "csv"); !strings.Contains(got, "\nmail,,7,,") {
		t.Errorf("list printed %q, want the limit of mail", got)
	}
	for what, args := range map[string][]string{
		"say which limit":                                   {"mail"},
		"--max-running is 0, want 1 to 1000":                {"mail", "--max-running", "0"},
		`--rate is "10": want N/INTERVAL`:                   {"mail", "--rate", "10"},
		`--rate is "0/s": want 1 to 1000000`:                {"mail", "--rate", "0/s"},
		`--rate is "1/": want a duration`:                   {"mail", "--rate", "1/"},
		`--rate is "1/1ms": want a duration of 10ms to 31d`: {"mail", "--rate", "1/1ms"},
		"exclude each other":                                {"mail", "--rate", "1/s", "--no-rate"},
		`QUEUE is "a b": byte 1 is " "`:                     {"a b", "--no-rate"},
	} {
		if r := posthaste(t, e, "", append([]string{"queues", "limit"}, args...)...); r.code != exitUsage || !strings.Contains(r.errOut, what) {
			t.Errorf("%v: got %+v, want exit status 2 and %q", args, r, what)
		}
	}
}

// A queue is paused because something is wrong: the act does not wait for a note about its name.
func TestAnActWaitsForNoNote(t *testing.T) {
	t.Parallel()
	url := pgtest.URL(t)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `BEGIN; LOCK TABLE outbox.jobs`); err != nil { // no list of queues is read now
		t.Fatal(err)
	}
	begun := time.Now()
	ok(t, env{"DATABASE_URL": url}, "queues", "pause", "mail")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the pause took %s", took)
	}
}

func TestQueuesAndSchedulesAreListedByTenant(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	mine, other := outbox.NewID(), outbox.NewID()
	for tenant, queue := range map[outbox.ID]string{mine: "mine", other: "other"} {
		stored(t, db, 2, "mail", outbox.Options{Tenant: tenant, Queue: queue})
		ok(t, direct, "schedules", "create", "of-"+queue, "--kind", "mail", "--every", "1h", "--tenant", tenant.String())
	}
	ok(t, direct, "queues", "pause", "post")
	for name, way := range map[string]env{"direct": direct, "through the API": through} {
		queues := rows(t, way, "queues", "list", "--tenant", mine.String())
		if len(queues) != 2 || queues[0]["queue"] != "mine" || queues[0]["pending"] != 2.0 || queues[1]["queue"] != "post" {
			t.Errorf("%s: the queues are %v, want the tenant's, and that which is paused", name, queues)
		}
		schedules := rows(t, way, "schedules", "list", "--tenant", mine.String())
		if len(schedules) != 1 || schedules[0]["name"] != "of-mine" {
			t.Errorf("%s: the schedules are %v, want the tenant's", name, schedules)
		}
	}
}
