package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A stream has lost everything, and gets it again, although the process that publishes is
// killed in between. JetStream drops what it remembers, which is said before and counted.
func TestAStreamThatLostEverythingIsRepaired(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}, Duplicates: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	url := pgtest.URL(t)
	file := writeRelayConfig(t, "source: shop\nsinks:\n  orders: {nats: {url: \""+server.URL+"\"}}\n"+
		"routes:\n  - {topics: [\"order.*\"], to: orders, destination: \"shop.{topic}.{key|token}\"}\n")
	e := env{"DATABASE_URL": url}
	serve := func() (kill func()) {
		cmd, _ := serving(t, "--database-url", url, "--role", "relay", "--relay-config", file)
		return func() { _ = cmd.Process.Kill() }
	}
	kill := serve()
	const events = 120
	var bodies []string
	for i := range events {
		bodies = append(bodies, fmt.Sprint(i))
	}
	publishFrom(t, url, "order.paid", bodies...)
	stored := func(n int) {
		t.Helper()
		var got int
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if got = len(natstest.Drain(t, js, "SHOP")); got >= n {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the stream has %d messages, want %d", got, n)
			}
		}
	}
	stored(events)
	until := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !is(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("in vain: %s", what)
			}
		}
	}
	plan := func() string {
		return ok(t, e, "relay", "replay", "orders", "--since", "1h", "--rate", "60/s", "--dry-run")
	}
	until("it is known for how long the stream remembers ids", func() bool { return strings.Contains(plan(), "would be dropped") })
	if got := plan(); !strings.Contains(got, "would publish 120 events, stored from ") || !strings.Contains(got, ", in about 2s\nabout 120 of them are younger than 1h, for which the broker remembers ids, and would be dropped: use --again\n") {
		t.Errorf("the dry run printed %s", got)
	}
	if got := ok(t, e, "relay", "replay", "orders", "--since", "1h", "--yes", "--reason", "in vain"); got != "finished: 120 published, of which the broker dropped 120 as repeats; 0 refused and skipped\n" {
		t.Errorf("replay printed %s", got)
	}
	if err := stream.Purge(t.Context()); err != nil {
		t.Fatal(err)
	}
	id := strings.TrimSpace(ok(t, e, "relay", "replay", "orders", "--since", "1h", "--again", "--stop-live", "--rate", "60/s", "--detach", "--yes", "--reason", "stream lost its tail"))
	stored(20)
	kill()
	serve()
	until("the replay ends", func() bool { return rows(t, e, "relay", "replays", "orders")[0]["state"] == "finished" })
	missing := map[string]bool{}
	for _, body := range bodies {
		missing[body] = true
	}
	got := natstest.Drain(t, js, "SHOP")
	for _, m := range got {
		delete(missing, string(m.Data))
		if m.Header.Get("posthaste-replay") != id || !strings.HasSuffix(m.Header.Get("Nats-Msg-Id"), "/"+id) {
			t.Fatalf("a message has the headers %v", m.Header)
		}
	}
	if len(missing) > 0 || len(got) != events {
		t.Errorf("the stream has %d messages, and not %v, want each once: ids of a replay are its own, and the same after a crash", len(got), missing)
	}
	if all := rows(t, e, "relay", "replays", "orders"); len(all) != 2 || all[0]["id"] != id || all[0]["reason"] != "stream lost its tail" || all[1]["repeated"] != 120.0 {
		t.Errorf("replays are %v", all)
	}
	if acts := rows(t, e, "audit", "--act", "sink.replay"); len(acts) != 2 || acts[0]["reason"] != "stream lost its tail" || acts[0]["target"] != "orders" {
		t.Errorf("the audit has %v", acts)
	}
	if out := ok(t, e, "relay", "replays", "stop", "orders", id); !strings.HasPrefix(out, "had finished: ") {
		t.Errorf("to stop what has finished says %q", out)
	}
}

func TestReplaysAreRefused(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	e := env{"DATABASE_URL": db.Config().ConnString()}
	ok(t, e, "publish", "order.paid", `{}`)
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	for line, want := range map[string]string{
		"relay replay orders":                           "--since is required",
		"relay replay orders --since 1h --rate 0":       "want more than 0 events a second",
		"relay replay orders --since 1h --rate 1000000": "want 0.001 to 100000",
		"relay replay orders --since 1h --topic a*b":    "want a topic, one that ends in .* or *",
		"relay replay orders --since 1h --until 2h":     "--until is not after since",
		"relay replays stop orders x":                   "replay id",
		"relay replay orders --since soon":              "want a time",
	} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitUsage || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %+v, want exit status 2 and %q", line, r, want)
		}
	}
	for line, want := range map[string]string{
		"relay replay none --since 1h":                                   "sink not found",
		"relay replay none --since 1h --topic nothing":                   "sink not found",
		"relay replay none --since 1h --dry-run":                         "replay to sink none: sink not found",
		"relay replays none":                                             "sink not found",
		"relay replay orders --since 1h --topic nothing":                 "no event in the log matches",
		"relay replays stop orders 01976f0e-7a5c-7d3e-8f4b-0123456789ab": "replay not found",
	} {
		if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitFailed || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %+v, want %q", line, r, want)
		}
	}
	if got := ok(t, e, "relay", "replay", "orders", "--since", "1h", "--topic", "nothing", "--dry-run"); got != "would publish 0 events\n" {
		t.Errorf("a dry run of nothing printed %q", got)
	}
}

// A dry run says of a name that is misspelt what the replay would.
func TestADryRunOfAReplayLooksForTheSink(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	ok(t, direct, "publish", "order.paid", `{}`)
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	for name, way := range map[string]env{"directly": direct, "through the API": through} {
		for _, more := range []string{"", " --topic nothing", " --tenant 00000000-0000-0000-0000-000000000001"} {
			line := "relay replay order --since 1h --dry-run" + more
			if r := posthaste(t, way, "", strings.Fields(line)...); r.code != exitFailed || r.out != "" || !strings.Contains(strings.ToLower(r.errOut), "sink") {
				t.Errorf("%s, %s: %+v, want exit status 1", name, line, r)
			}
		}
		if out := ok(t, way, "relay", "replay", "orders", "--since", "1h", "--dry-run"); !strings.HasPrefix(out, "would publish 1 events") {
			t.Errorf("%s: a dry run printed %s", name, out)
		}
	}
}

// interrupted answers the first look at a replay as the database does while the command is interrupted.
type interrupted struct {
	sinkReplays
	stop context.CancelFunc
}

func (i interrupted) Replay(context.Context, string, outbox.ID, outbox.ID) (operator.Replay, error) {
	i.stop()
	return operator.Replay{}, context.Canceled
}

// Ctrl-C during a look at the replay does not make the command forget which one it is.
func TestAnInterruptedCommandNamesTheReplayThatGoesOn(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	id := outbox.NewID()
	p := &program{stdout: &checked{Writer: io.Discard}, stderr: io.Discard}
	err := p.awaitReplay(ctx, interrupted{stop: stop}, operator.Replay{ID: id, Sink: "orders"})
	want := "replay " + id.String() + " goes on; posthaste relay replays orders shows it, and relay replays stop orders " + id.String() + " ends it"
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestJobsOfTheHistoryAreReplayed(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	for _, e := range []env{direct, through} {
		sqlExec(t, db, `TRUNCATE outbox.jobs, outbox.history`)
		sqlExec(t, db, `INSERT INTO outbox.history (id, tenant_id, run_at, created_at, epoch, status, closed_from, attempt, max_attempts, lost_leases, priority, queue, kind, payload, content_type)
			SELECT gen_random_uuid(), '00000000-0000-0000-0000-000000000001', now(), now(), 1, 'succeeded', 'running', 1, 25, 0, 0, 'q', 'order.announce', '{}', 'application/json'
			FROM generate_series(1, 3)`)
		if out := ok(t, e, "jobs", "replay", "--kind", "order.announce", "--since", "2h", "--rate", "1/s", "--dry-run"); !strings.Contains(out, "would enqueue 3 jobs") || !strings.Contains(out, "in about 3s") {
			t.Errorf("a dry run printed %s", out)
		}
		if out := ok(t, e, "jobs", "replay", "--kind", "order.announce", "--since", "2h", "--yes", "--reason", "lost"); !strings.HasPrefix(out, "enqueued 3 jobs: replay ") {
			t.Errorf("it printed %s", out)
		}
		if out := ok(t, e, "jobs", "list", "--queue", "q", "-o", "json"); strings.Count(out, `"pending"`) != 3 {
			t.Errorf("there are %s", out)
		}
		if out := ok(t, e, "jobs", "replay", "--kind", "nothing", "--since", "2h", "--yes"); out != "would enqueue 0 jobs\n" {
			t.Errorf("of none it printed %s", out)
		}
		for _, line := range []string{"jobs replay s --kind k --since 2h", "jobs replay --kind k", "jobs replay --since 2h", "relay replay --kind k --since 2h", "jobs replay --kind relay:s --since 2h --dry-run"} {
			if r := posthaste(t, e, "", strings.Fields(line)...); r.code != exitUsage {
				t.Errorf("%s: %+v, want exit status 2", line, r)
			}
		}
	}
}
