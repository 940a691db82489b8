package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// publishFrom stores events of a topic in the database, one for each body.
func publishFrom(t *testing.T, url, topic string, bodies ...string) (ids []outbox.ID) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	for _, body := range bodies {
		id := outbox.NewID()
		if _, err := conn.Exec(t.Context(), `WITH stored AS (
				INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload) VALUES ($1, $2, $3, 'k', 'text/plain', $4))
			SELECT pg_notify('outbox_events', '')`, id, outbox.RootTenant, topic, []byte(body)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// The relay of serve publishes to a real server; operators pause, resume and skip.
func TestServePublishesEvents(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	stream := server.Connect()
	if _, err := stream.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}, MaxMsgSize: 1000}); err != nil {
		t.Fatal(err)
	}
	url := pgtest.URL(t)
	file := writeRelayConfig(t, "source: shop\nsinks:\n  orders: {nats: {url: \""+server.URL+"\"}}\n"+
		"routes:\n  - {topics: [\"order.*\"], to: orders, destination: \"shop.{topic}.{key|token}\"}\n")
	e := env{"DATABASE_URL": url}
	if out := ok(t, e, "relay", "check", "--relay-config", file); !strings.Contains(out, "one replica") {
		t.Errorf("relay check printed\n%s", out)
	}
	if out := posthaste(t, e, "", "doctor", "--relay-config", file).out; !strings.Contains(out, "one replica") || !strings.Contains(out, "broker of ") {
		t.Errorf("doctor printed\n%s", out)
	}
	serving(t, "--database-url", url, "--role", "relay", "--relay-config", file)

	sink := func() map[string]any {
		var rows []map[string]any
		if err := json.Unmarshal([]byte(ok(t, e, "relay", "list", "-o", "json")), &rows); err != nil {
			t.Fatal(err)
		}
		if len(rows) == 0 {
			return map[string]any{}
		}
		return rows[0]
	}
	await := func(what string, is func(map[string]any) bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !is(sink()); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("in vain: %s; there is %v", what, sink())
			}
		}
	}
	publishFrom(t, url, "order.paid", "1", "2")
	await("two are published", func(s map[string]any) bool { return s["published"] == 2.0 && s["state"] == "publishing" })
	got := natstest.Drain(t, stream, "SHOP")
	if len(got) != 2 || got[0].Subject != "shop.order.paid.k" || string(got[1].Data) != "2" || got[0].Header.Get("ce-source") != "shop" {
		t.Fatalf("the stream has %+v", got)
	}

	ok(t, e, "relay", "pause", "orders")
	await("it is paused", func(s map[string]any) bool { return s["state"] == "paused" })
	time.Sleep(2 * time.Second) // its owner learns of it
	large := publishFrom(t, url, "order.paid", strings.Repeat("x", 2000), "4")
	time.Sleep(500 * time.Millisecond)
	if s := sink(); s["published"] != 2.0 || s["lag"] != 2.0 {
		t.Errorf("a paused sink: %v", s)
	}
	ok(t, e, "relay", "resume", "orders")
	await("what is too large holds its key", func(s map[string]any) bool { return s["held"] == 2.0 && s["state"] == "publishing" && s["lag"] == 0.0 })
	letter := func() string {
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
			var letters []struct{ ID, ErrorCode string }
			if err := json.Unmarshal([]byte(ok(t, e, "dlq", "list", "--kind", "relay:orders", "-o", "json")), &letters); err != nil {
				t.Fatal(err)
			}
			if len(letters) == 1 {
				return letters[0].ID
			}
			if time.Now().After(deadline) {
				t.Fatal("in vain: the message is a dead letter")
			}
		}
	}()
	ok(t, e, "dlq", "replay", letter, "--payload", "small")
	await("the key goes on", func(s map[string]any) bool { return s["published"] == 4.0 && s["held"] == 0.0 })
	if got := natstest.Drain(t, stream, "SHOP"); len(got) != 4 || string(got[2].Data) != "small" || string(got[3].Data) != "4" || got[2].Header.Get("ce-id") != large[0].String() {
		t.Errorf("the stream has %+v", got)
	}

	if err := stream.DeleteStream(t.Context(), "SHOP"); err != nil {
		t.Fatal(err)
	}
	waiting := publishFrom(t, url, "order.paid", "5")
	await("it stands still without the stream", func(s map[string]any) bool { return s["code"] == "relay_no_destination" && s["state"] == "away" })
	if r := posthaste(t, e, "", "relay", "skip", "orders", outbox.NewID().String()); r.code != exitFailed || !strings.Contains(r.errOut, "does not wait for the sink") {
		t.Errorf("skip of an event that there is not: %+v", r)
	}
	ok(t, e, "relay", "skip", "orders", waiting[0].String(), "--reason", "a test")
	await("it goes on without the event", func(s map[string]any) bool { return s["state"] == "publishing" && s["lag"] == 0.0 })
	if out := ok(t, e, "audit", "--act", "sink.skip", "-o", "json"); !strings.Contains(out, waiting[0].String()) || !strings.Contains(out, "a test") {
		t.Errorf("the audit has %s", out)
	}
	for _, verb := range []string{"pause", "resume"} {
		if r := posthaste(t, e, "", "relay", verb, "none"); r.code != exitFailed || !strings.Contains(r.errOut, "ink not found") {
			t.Errorf("%s of a sink that there is not: %+v", verb, r)
		}
	}
}

// Of two sinks that are new, the one with begin: now gets nothing of before the start. After that it misses nothing of
// while no process runs.
func TestServeBeginsWhereTheFileSays(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	got := map[string][]string{}
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got[r.URL.Path] = append(got[r.URL.Path], string(body))
	}))
	t.Cleanup(receiver.Close)
	at := func(path string) string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(got[path], " ")
	}
	file := writeRelayConfig(t, fmt.Sprintf(`
sinks:
  all: {webhook: {url: %[1]q, allow: [127.0.0.0/8]}}
  later: {webhook: {url: %[1]q, allow: [127.0.0.0/8]}, begin: now}
routes:
  - {topics: ["*"], to: all, destination: all}
  - {topics: ["*"], to: later, destination: later}
`, receiver.URL))
	url := pgtest.URL(t)
	publishFrom(t, url, "order.paid", "1", "2")
	for _, want := range []struct{ body, later, all string }{
		{"3", "3", "1 2 3"},
		{"5", "3 4 5", "1 2 3 4 5"},
	} {
		relaying, logs := serving(t, "--database-url", url, "--role", "relay", "--relay-config", file)
		awaitReadiness(t, adminAddr(t, logs), http.StatusOK)
		publishFrom(t, url, "order.paid", want.body)
		awaitText(t, want.all, func() string { return at("/all") })
		awaitText(t, want.later, func() string { return at("/later") })
		if all, later := at("/all"), at("/later"); all != want.all || later != want.later {
			t.Errorf("all got %s, and later %s, want %s and %s", all, later, want.all, want.later)
		}
		if said := strings.Contains(logs.String(), `sink created`); said != (want.body == "3") {
			t.Errorf("the log says that a sink is created: %t", said)
		}
		if err := relaying.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := relaying.Wait(); err != nil {
			t.Errorf("the process ended with %v", err)
		}
		publishFrom(t, url, "order.paid", "4")
	}
}

func TestHeldMessagesAreListed(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	sqlExec(t, db, `
		WITH job AS (
			INSERT INTO outbox.jobs (id, tenant_id, queue, kind, payload, key, ordered, line_position, headers, last_error_code, created_at)
			SELECT gen_random_uuid(), '00000000-0000-0000-0000-00000000000a', 'relay:orders', 'relay:orders', '{}', 'k', true, i,
				jsonb_build_object('posthaste-event', '{"id": "01a2175a-3d24-728e-b9f6-e3596a53baf' || i || '", "topic": "order.paid", "position": ' || i || ', "at": "2026-11-26T10:00:00Z"}'),
				CASE i WHEN 1 THEN 'relay_too_large' END, now()
			FROM generate_series(1, 2) AS i
			RETURNING id, tenant_id, key, line_position)
		INSERT INTO outbox.held_messages (sink, job_id, tenant_id, key, position) SELECT 'orders', id, tenant_id, key, line_position FROM job`)
	for _, way := range []env{direct, through} {
		held := rows(t, way, "relay", "held", "orders")
		if len(held) != 2 || held[0]["event"] != "01a2175a-3d24-728e-b9f6-e3596a53baf1" || held[0]["topic"] != "order.paid" || held[0]["key"] != "k" || held[0]["position"] != 1.0 ||
			held[0]["error_code"] != "relay_too_large" || held[0]["tenant"] != "00000000-0000-0000-0000-00000000000a" || held[1]["error_code"] != nil || held[1]["job"] == held[0]["job"] {
			t.Errorf("relay held printed %v", held)
		}
		if held := rows(t, way, "relay", "held", "orders", "--limit", "1"); len(held) != 1 {
			t.Errorf("with a limit it printed %v", held)
		}
		if r := posthaste(t, way, "", "relay", "held", "none"); r.code != exitFailed || !strings.Contains(r.errOut, "ink not found") {
			t.Errorf("held of a sink that there is not: %+v", r)
		}
		if r := posthaste(t, way, "", "relay", "held", "orders", "--after-position", "-1"); r.code != exitUsage {
			t.Errorf("behind no position: %+v", r)
		}
	}
	if r := posthaste(t, direct, "", "relay", "remove", "orders"); r.code != exitFailed || !strings.Contains(r.errOut, "2 messages that it has refused") {
		t.Errorf("remove of a sink that holds messages: %+v", r)
	}
	if r := posthaste(t, direct, "", "relay", "remove", "orders", "--force"); r.code != exitUsage || !strings.Contains(r.errOut, "give up 2 events that it has not published?") {
		t.Errorf("remove --force of two messages, without --yes: %+v", r)
	}
	if out := ok(t, direct, "relay", "remove", "orders", "--force", "--yes"); out != "removed: orders (events that it has not published: 2)\n" {
		t.Errorf("remove --force printed %q", out)
	}
}

// There may be more held messages than a page of the list has.
func TestHeldMessagesAreListedPageAfterPage(t *testing.T) {
	t.Parallel()
	db, direct, through := ways(t)
	sqlExec(t, db, `INSERT INTO outbox.sinks (sink) VALUES ('orders')`)
	sqlExec(t, db, `
		WITH job AS (
			INSERT INTO outbox.jobs (id, queue, kind, payload, priority, created_at)
			SELECT gen_random_uuid(), 'relay:orders', 'relay:orders', '{}', i, now() FROM generate_series(1, 410) AS i
			RETURNING id, tenant_id, priority)
		INSERT INTO outbox.held_messages (sink, job_id, tenant_id, position) SELECT 'orders', id, tenant_id, priority FROM job`)
	for name, way := range map[string]env{"direct": direct, "through the API": through} {
		for _, c := range []struct{ after, limit, first, last int }{
			{0, 1000, 1, 410}, {0, 400, 1, 400}, {0, 3, 1, 3}, {200, 5, 201, 205}, {399, 400, 400, 410}, {205, 205, 206, 410},
		} {
			held := rows(t, way, "relay", "held", "orders", "--after-position", strconv.Itoa(c.after), "--limit", strconv.Itoa(c.limit))
			for i, m := range held {
				if m["position"] != float64(c.first+i) {
					t.Fatalf("%s, %+v: message %d is at %v", name, c, i, m["position"])
				}
			}
			if len(held) != c.last-c.first+1 {
				t.Errorf("%s, %+v: %d messages", name, c, len(held))
			}
		}
		if held := rows(t, way, "relay", "held", "orders", "--after-position", "410"); len(held) != 0 {
			t.Errorf("%s: %d messages behind the last one", name, len(held))
		}
		if r := posthaste(t, way, "", "relay", "held", "none", "--after-position", "7"); r.code != exitFailed || !strings.Contains(r.errOut, "ink not found") {
			t.Errorf("%s: held of a sink that there is not: %+v", name, r)
		}
	}
}
