package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// tailingEvents runs relay tail until the test ends, and returns what it prints.
func tailingEvents(t *testing.T, e env, args ...string) *lockedBuffer {
	t.Helper()
	out, _ := tailingWithErrors(t, e, args...)
	return out
}

func tailingWithErrors(t *testing.T, e env, args ...string) (out, errOut *lockedBuffer) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	out, errOut = new(lockedBuffer), new(lockedBuffer)
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, append([]string{"posthaste", "relay", "tail"}, args...), func(name string) string { return e[name] }, strings.NewReader(""), out, errOut)
	}()
	t.Cleanup(func() {
		stop()
		if code := <-ended; code != exitOK {
			t.Errorf("relay tail %v: exit status %d: %s", args, code, errOut.String())
		}
	})
	return out, errOut
}

func TestATailOfEventsGoesOnAfterAnOutage(t *testing.T) {
	t.Parallel()
	pool := pgtest.New(t)
	publish := func(key string) {
		ok(t, env{"DATABASE_URL": pool.Config().ConnString()}, "publish", "order.paid", "{}", "--key", key)
	}
	out, errOut := tailingWithErrors(t, env{"DATABASE_URL": pool.Config().ConnString() + "&application_name=tail-cut-off"}, "--since", "1h")
	await := func(key string) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); !strings.Contains(out.String(), key); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the event of %s is not printed: %s%s", key, out, errOut)
			}
		}
	}
	publish("before")
	await("before")
	cutOff(t, pool, "tail-cut-off", errOut)
	publish("after")
	await("after")
	if got := out.String(); strings.Count(got, "before") != 1 || strings.Count(got, "after") != 1 {
		t.Errorf("printed %s, want each once", got)
	}
}

func TestEventsAreTailed(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := env{"DATABASE_URL": db.Config().ConnString()}
	other := outbox.NewID()
	ok(t, e, "publish", "order.paid", `{"n": 1}`, "--key", "7")
	ok(t, e, "publish", "order.paid", `{"n": 2}`, "--key", "8")
	ok(t, e, "publish", "stock.low", `{"n": 3}`, "--key", "7")
	ok(t, e, "publish", "order.sent", `{"n": 4}`, "--key", "7", "--tenant", other.String())
	all := tailingEvents(t, e, "--since", "1h", "--payloads")
	one := tailingEvents(t, e, "--since", "1h", "-o", "json", "--topic", "order.*,nothing", "--key", "7", "--tenant", other.String(), "--payloads")
	hidden := tailingEvents(t, e, "--since", "1h")
	awaitText(t, `{"n": 4}`, all.String)
	awaitText(t, "order.sent", hidden.String)
	if got := all.String(); strings.Count(got, "\n") != 4 || !strings.Contains(got, "  1  order.paid  7  "+outbox.RootTenant.String()+"  ") {
		t.Errorf("it printed\n%s", got)
	}
	if got := hidden.String(); strings.Contains(got, `{"n"`) {
		t.Errorf("without --payloads it printed\n%s", got)
	}
	ok(t, e, "publish", "order.cancelled", `{"n": 5}`, "--key", "7", "--tenant", other.String())
	awaitText(t, "order.cancelled", one.String)
	lines := strings.Split(strings.TrimSpace(one.String()), "\n")
	var event struct {
		At       time.Time
		Position int
		Topic    string
		Key      string
		Tenant   string
		Payload  struct{ N int }
	}
	if len(lines) != 2 || json.Unmarshal([]byte(lines[0]), &event) != nil || event.Topic != "order.sent" || event.Position != 4 || event.Tenant != other.String() || event.Payload.N != 4 || event.At.IsZero() {
		t.Errorf("with filters it printed\n%s", one.String())
	}
	for _, line := range []string{"relay tail --topic a.*.b", "relay tail s --since 1h", "relay tail --since soon", "relay tail a b"} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitUsage {
			t.Errorf("%s: %+v, want exit status 2", line, r)
		}
	}
	if r := posthaste(t, e, "", "relay", "tail", "none"); r.code != exitFailed || !strings.Contains(r.errOut, `there is no sink "none"`) {
		t.Errorf("of no sink: %+v", r)
	}
}

func TestSinksAreMovedAndRemoved(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := env{"DATABASE_URL": db.Config().ConnString()}
	for range 3 {
		ok(t, e, "publish", "order.paid", `{}`)
	}
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink, owner, lease_expires_at) VALUES ('orders', 'host-1', now() + interval '5 minutes')`)
	for _, step := range []struct{ line, want string }{
		{"--to-end --dry-run", "would go from 0 to 3: 3 events are not published\n"},
		{"--to-end --yes", "orders goes on behind 3, from 0: 3 events are not published\n"},
		{"--since 1h -y", "orders goes on behind 0, from 3: 3 events are published again\n"},
		{"--to 1", "orders goes on behind 1, from 0: 1 events are not published\n"},
	} {
		if got := ok(t, e, append([]string{"relay", "seek", "orders", "--reason", "a test"}, strings.Fields(step.line)...)...); got != step.want {
			t.Errorf("seek %s printed %q, want %q", step.line, got, step.want)
		}
	}
	for line, want := range map[string]string{
		"relay seek orders":                 "want one of --to, --to-end and --since",
		"relay seek orders --to 1 --to-end": "want one of --to, --to-end and --since",
		"relay seek orders --to 9":          "--to is 9, want 0 to 3, where the log ends",
		"relay seek orders --to-end":        "Not a terminal: pass --yes to confirm",
	} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %+v, want exit status 2 and %q", line, r, want)
		}
	}
	if acts := rows(t, e, "audit", "--act", "sink.seek"); len(acts) != 3 || acts[0]["reason"] != "a test" {
		t.Errorf("the audit has %v", acts)
	}
	if r := posthaste(t, e, "", "relay", "remove", "orders"); r.code != exitUsage || !strings.Contains(r.errOut, "give up 2 events that it has not published? Not a terminal") {
		t.Errorf("remove without --yes of a sink with two events ahead: %+v", r)
	}
	if got := ok(t, e, "relay", "remove", "orders", "--yes"); got != "removed: orders (events that it has not published: 2)\n" {
		t.Errorf("remove printed %q", got)
	}
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink, top) VALUES ('orders', 3)`)
	if got := ok(t, e, "relay", "remove", "orders"); got != "removed: orders\n" {
		t.Errorf("remove of a sink that has published all printed %q", got)
	}
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink, owner, lease_expires_at) VALUES ('orders', 'host-1', now() + interval '5 minutes')`)
	for line, want := range map[string]string{"relay remove orders": "a process publishes to the sink", "relay remove none": "sink not found", "relay seek none --to-end": "sink not found"} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitFailed || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %+v, want %q", line, r, want)
		}
	}
}
