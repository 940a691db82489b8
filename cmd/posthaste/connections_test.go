package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// documented returns what docs/operate/postgres.md says that a part of a process takes at most: base connections, and
// each connections more for each of what it has several of.
func documented(t *testing.T, part string) (base, each int) {
	t.Helper()
	page, err := os.ReadFile("../../docs/operate/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(part) + ` \|[^|]*\| (\d+)(?: \+ (\d+) for each [^|]*)? \|`).FindSubmatch(page)
	if m == nil {
		t.Fatalf("docs/operate/postgres.md does not say how many connections %q takes", part)
	}
	base, _ = strconv.Atoi(string(m[1]))
	each, _ = strconv.Atoi(string(m[2]))
	return base, each
}

// A process has no more connections than the page says while all of its parts have as much to ask as
// they ever have: tables that each part needs are locked, so that whatever can be asked at a time is
// under way. The page must not say many more than there are, either.
func TestAProcessHasTheConnectionsThatThePageSays(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		parts []string       // of the process
		more  map[string]int // beyond the first number of a part: how many it has of what adds to it
		start func(t *testing.T, url string) (ask func())
		seen  int // that the test reaches at least
	}{
		"dispatch": {[]string{"every process", "`dispatch`", "`reap`", "schedules", "listener"}, map[string]int{"`dispatch`": 2}, startWork, 10},
		"api":      {[]string{"every process", "`api`, `console`"}, nil, startAPI, 9},
		"relay":    {[]string{"every process", "`relay`"}, map[string]int{"`relay`": 2}, startRelay, 6},
		"held":     {[]string{"every process", "`relay`", "held messages"}, map[string]int{"`relay`": 1, "held messages": 1}, startHeld, 7},
		"bridges":  {[]string{"every process", "bridges"}, map[string]int{"bridges": 2}, startBridges, 3},
		"rpc":      {[]string{"every process", "`api`, `console`", "API over NATS"}, nil, startRPC, 5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			limit := 0
			for _, part := range c.parts {
				base, each := documented(t, part)
				limit += base + each*c.more[part]
			}
			url := pgtest.URL(t)
			most := mostConnections(t, url, c.seen, c.start(t, url))
			t.Logf("%d connections, the page says %d at most", most, limit)
			if most > limit || most < c.seen {
				t.Errorf("the process had %d connections, want %d at least, and %d at most as docs/operate/postgres.md says", most, c.seen, limit)
			}
		})
	}
}

// The sums on the pages are those of the parts.
func TestPagesAddUpTheConnectionsOfAProcess(t *testing.T) {
	t.Parallel()
	sum := 0
	for _, part := range []string{"every process", "listener", "`dispatch`", "`reap`", "schedules"} {
		base, each := documented(t, part)
		sum += base + each
	}
	api, _ := documented(t, "`api`, `console`")
	for page, want := range map[string][]string{
		"operate/postgres.md": {
			fmt.Sprintf("opens at most %d connections", sum), fmt.Sprintf("with the API, %d.", sum+api), fmt.Sprintf("up to %d × *n*", sum),
		},
		"why/faq.md": {fmt.Sprintf("At most %d with one queue", sum), fmt.Sprintf("at most %d more for the API and console", api)},
	} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		for _, stated := range want {
			if !strings.Contains(string(text), stated) {
				t.Errorf("docs/%s does not state: %s", page, stated)
			}
		}
	}
}

// mostConnections returns how many connections a process has at most while tables are locked three times, and again
// until that many are seen.
func mostConnections(t *testing.T, url string, seen int, ask func()) (most int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	for try := 0; try < 3 || try < 20 && most < seen; try++ {
		var asking sync.WaitGroup
		tx, err := conn.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(t.Context(), `LOCK TABLE outbox.jobs, outbox.sinks, outbox.chores, outbox.schedules, outbox.workers, outbox.progress`); err != nil {
			t.Fatal(err)
		}
		asking.Go(ask)
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			var n int
			if err := tx.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_get_activity(NULL) AS a JOIN pg_database AS d ON d.oid = a.datid
				WHERE d.datname = current_database() AND a.application_name LIKE 'posthaste%'`).Scan(&n); err != nil {
				t.Fatal(err)
			}
			most = max(most, n)
		}
		if err := tx.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		asking.Wait()
		time.Sleep(200 * time.Millisecond) // work goes on, so that there is something to ask
	}
	return most
}

// startWork starts a process that works two queues full of jobs.
func startWork(t *testing.T, url string) func() {
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(100 * time.Millisecond)
		w.WriteHeader(http.StatusNoContent)
	}))
	t.Cleanup(hook.Close)
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(t.Context())) }()
	if _, err := conn.Exec(t.Context(), `SELECT outbox.enqueue('greet', '{}'::jsonb, queue => q)
		FROM unnest('{default,mail}'::text[]) AS q, generate_series(1, 2000)`); err != nil {
		t.Fatal(err)
	}
	_, logs := serving(t, "--database-url", url, "--webhook", "greet="+hook.URL, "--queues", "default=64,mail=64")
	awaitText(t, "dispatcher started", logs.String)
	return func() {}
}

// startAPI starts a process that serves, and is asked for more than it can at once.
func startAPI(t *testing.T, url string) func() {
	bearer := strings.TrimSpace(ok(t, env{"DATABASE_URL": url}, "tokens", "create", "ops", "-c", "admin.read,jobs.read"))
	_, logs := serving(t, "--database-url", url, "--role", "api,console", "--api-addr", "127.0.0.1:0")
	api := apiURL(t, logs)
	return func() {
		var asking sync.WaitGroup
		for range 30 {
			asking.Go(func() {
				request, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, api+"/jobs", nil)
				request.Header.Set("Authorization", "Bearer "+bearer)
				if answer, err := http.DefaultClient.Do(request); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					_ = answer.Body.Close()
				}
			})
		}
		asking.Wait()
	}
}

// startRelay starts a process that publishes to two sinks.
func startRelay(t *testing.T, url string) func() {
	server := natstest.Start(t, natstest.Options{})
	sink := fmt.Sprintf("{nats: {url: %q}}", server.URL)
	file := writeRelayConfig(t, "source: shop\nsinks:\n  a: "+sink+"\n  b: "+sink+"\nroutes:\n"+
		"  - {topics: [\"order.*\"], to: a, destination: \"a.{topic}\"}\n  - {topics: [\"order.*\"], to: b, destination: \"b.{topic}\"}\n")
	_, logs := serving(t, "--database-url", url, "--role", "relay", "--relay-config", file)
	awaitText(t, "sink owned", logs.String)
	return func() { publishFrom(t, url, "order.paid", "1", "2") }
}

// startHeld starts a process that publishes to a sink, which refuses some of the messages.
func startHeld(t *testing.T, url string) func() {
	server := natstest.Start(t, natstest.Options{})
	if _, err := server.Connect().CreateStream(t.Context(), jetstream.StreamConfig{Name: "A", Subjects: []string{"a.>"}}); err != nil {
		t.Fatal(err)
	}
	file := writeRelayConfig(t, fmt.Sprintf("source: shop\nsinks:\n  a: {nats: {url: %q}}\nroutes:\n  - {topics: [\"order.*\"], to: a, destination: \"a.{topic}\"}\n", server.URL))
	_, logs := serving(t, "--database-url", url, "--role", "relay", "--relay-config", file)
	awaitText(t, "sink owned", logs.String)
	tooLarge := strings.Repeat("x", 2<<20)
	return func() { publishFrom(t, url, "order.paid", tooLarge, "1", "2") }
}

// startBridges starts a process that makes jobs of the messages of two streams.
func startBridges(t *testing.T, url string) func() {
	server := natstest.Start(t, natstest.Options{})
	js := server.Connect()
	bridges := "bridges:\n"
	for _, name := range []string{"a", "b"} {
		if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: name, Subjects: []string{name + ".>"}}); err != nil {
			t.Fatal(err)
		}
		bridges += fmt.Sprintf("  %s: {nats: {url: %q}, stream: %[1]s, consumer: c, kind: k}\n", name, server.URL)
	}
	_, logs := serving(t, "--database-url", url, "--role", "relay", "--relay-config", writeRelayConfig(t, bridges))
	awaitReadiness(t, adminAddr(t, logs), http.StatusOK)
	return func() {
		for range 50 {
			for _, subject := range []string{"a.x", "b.x"} {
				if _, err := js.Publish(t.Context(), subject, []byte(`{}`)); err != nil {
					t.Error(err)
				}
			}
		}
	}
}

// startRPC starts a process that answers over NATS, and is asked for more than it can at once.
func startRPC(t *testing.T, url string) func() {
	server := natstest.Start(t, natstest.Options{})
	nc := server.Connect().Conn()
	e := env{"DATABASE_URL": url}
	bearer := strings.TrimSpace(ok(t, e, "tokens", "create", "ops", "-c", "admin.read,jobs.read"))
	id := strings.TrimSpace(ok(t, e, "enqueue", "greet"))
	file := writeRelayConfig(t, fmt.Sprintf("rpc: {nats: {url: %q}, subjectPrefix: shop.v1}\n", server.URL))
	_, logs := serving(t, "--database-url", url, "--role", "api", "--api-addr", "127.0.0.1:0", "--relay-config", file)
	awaitReadiness(t, adminAddr(t, logs), http.StatusOK)
	return func() {
		var asking sync.WaitGroup
		for range 30 {
			asking.Go(func() {
				m := nats.NewMsg("shop.v1.Jobs.Get")
				m.Header.Set("Authorization", "Bearer "+bearer)
				m.Data = []byte(`{"id":"` + id + `"}`)
				_, _ = nc.RequestMsg(m, 5*time.Second)
			})
		}
		asking.Wait()
	}
}
