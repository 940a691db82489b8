package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// What one sink publishes a bridge fetches: each event is one job, of the same key, with its headers.
func TestServeMakesJobsOfMessages(t *testing.T) {
	t.Parallel()
	server := natstest.Start(t, natstest.Options{})
	if _, err := server.Connect().CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}}); err != nil {
		t.Fatal(err)
	}
	url := pgtest.URL(t)
	nats := "nats: {url: \"" + server.URL + "\"}"
	file := writeRelayConfig(t, "sinks:\n  orders: {"+nats+"}\nroutes:\n  - {topics: [\"*\"], to: orders, destination: \"shop.{topic}\"}\n"+
		"bridges:\n  paid: {"+nats+", stream: SHOP, consumer: work, subjects: [shop.order.paid], kind: order.paid, queue: in, ordered: true, maxQueued: 1000}\n")
	e := env{"DATABASE_URL": url}
	if out := ok(t, e, "relay", "check", "--relay-config", file); !strings.Contains(out, "bridge paid") || !strings.Contains(out, "it can fetch") {
		t.Errorf("relay check printed\n%s", out)
	}
	serving(t, "--database-url", url, "--role", "relay", "--relay-config", file)
	for _, body := range []string{"1", "2", "3"} {
		ok(t, e, "publish", "order.paid", body, "--key", "order-7", "--header", "traceparent=00-1-2-01")
		ok(t, e, "publish", "order.left", body)
	}
	list := func() string { return ok(t, e, "jobs", "list", "--queue", "in", "-o", "json") }
	for deadline := time.Now().Add(30 * time.Second); strings.Count(list(), `"order.paid"`) < 3; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("in vain: three jobs; there is %s", list())
		}
	}
	var bridges []struct {
		Bridge, State, Moved string
		Stored               int
	}
	if err := json.Unmarshal([]byte(ok(t, e, "relay", "bridges", "-o", "json")), &bridges); err != nil {
		t.Fatal(err)
	}
	if len(bridges) != 1 || bridges[0].Bridge != "paid" || bridges[0].State != "fetching" || bridges[0].Stored != 3 || bridges[0].Moved == "" {
		t.Errorf("relay bridges: %+v, want one that fetches and has stored 3 messages", bridges)
	}
	if out := list(); strings.Count(out, `"kind"`) != 3 || strings.Count(out, "order-7") < 3 {
		t.Errorf("the jobs are %s", out)
	}
}
