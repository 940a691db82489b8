package main

import (
	"encoding/json"
	"strings"
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
		if r := posthaste(t, e, "", "relay", verb, "none"); r.code != exitFailed || !strings.Contains(r.errOut, "sink not found") {
			t.Errorf("%s of a sink that there is not: %+v", verb, r)
		}
	}
}
