package main

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/promtest"
)

// Prometheus scrapes a process that does everything, in which something of each sort happens, and every query of the
// boards of deploy/grafana has an answer.
func TestLiveBoardsHaveNoEmptyPanel(t *testing.T) {
	t.Parallel()
	promtest.Find(t, "prometheus")
	pool := pgtest.New(t)
	url := pool.Config().ConnString()
	receiver := httptest.NewServer(http.HandlerFunc(receive))
	defer receiver.Close()
	broker := natstest.Start(t, natstest.Options{})
	if _, err := broker.Connect().CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}}); err != nil {
		t.Fatal(err)
	}
	e := env{"DATABASE_URL": url}
	token := strings.TrimSpace(ok(t, e, "tokens", "create", "boards", "--capability", "jobs.read"))
	ok(t, e, "queues", "limit", "mail", "--max-running", "2")
	execute(t, pool, `INSERT INTO outbox.schedules (name, every, kind, payload, next_at) VALUES ('often', '1 s', 'work', '{}', now())`)
	work(t, pool, "delay => interval '1 hour'") // so that the first sample has them all
	cmd, logs := serving(t, "--database-url", url, "--role", "dispatch,reap,relay,api", "--api-addr", "127.0.0.1:0", "--api-rate", "8",
		"--queues", "default=8,mail=4", "--webhook", "work="+receiver.URL+"/work", "--webhook", "fail="+receiver.URL+"/fail",
		"--webhook", "away="+receiver.URL+"/away", "--relay-config", writeRelayConfig(t, fmt.Sprintf(webhookAndBridge, receiver.URL, broker.URL)))
	prometheus := promtest.Start(t, "../../deploy/prometheus/posthaste.rules.yml", adminAddr(t, logs))
	api := apiURL(t, logs)

	empty := panels(t)
	n := len(empty)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for len(empty) > 0 && ctx.Err() == nil {
		work(t, pool, "")
		for range 10 { // more than it may ask in that time
			asked(t, "GET", api+"/jobs?limit=1", token, "")
		}
		for query := range empty {
			if values, err := prometheus.Query(ctx, query); err == nil && len(values) > 0 {
				delete(empty, query)
			} else if err != nil {
				break // it is not there yet
			}
		}
		time.Sleep(500 * time.Millisecond) // there is something new with the next scrape only
	}
	t.Logf("%d queries have answers", n-len(empty))
	for _, query := range slices.Sorted(maps.Keys(empty)) {
		t.Errorf("%s has no answer: %s", empty[query], query)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v, want exit status 0", err)
	}
}

// panels returns the queries of all boards, and of which panels they are.
func panels(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("../../deploy/grafana/*.json")
	if err != nil || len(files) != 3 {
		t.Fatalf("boards: %v %v", files, err)
	}
	all := map[string]string{}
	for _, file := range files {
		var board struct {
			Title  string
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
		}
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &board)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range board.Panels {
			for _, target := range p.Targets {
				query := strings.NewReplacer("$__rate_interval", "15s", "$queue", ".+", "$kind", ".+", "$sink", ".+").Replace(target.Expr)
				all[query] = board.Title + ", " + p.Title
			}
		}
	}
	return all
}

const webhookAndBridge = `
sinks:
  orders: {webhook: {url: %q, secrets: [whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=], allow: [127.0.0.0/8]}}
routes:
  - {topics: ["*"], to: orders, destination: "events/{topic|path}"}
bridges:
  paid: {nats: {url: %q}, stream: SHOP, consumer: work, kind: work}
`

// receive succeeds, refuses, or is away.
func receive(w http.ResponseWriter, r *http.Request) {
	switch {
	case strings.HasSuffix(r.URL.Path, "fail"):
		w.WriteHeader(http.StatusBadRequest)
	case strings.HasSuffix(r.URL.Path, "away"):
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusServiceUnavailable)
	default:
		time.Sleep(5 * time.Millisecond)
	}
}

// work stores a job of each sort, with more options, and events.
func work(t *testing.T, pool *pgxpool.Pool, options string) {
	t.Helper()
	if options != "" {
		options = ", " + options
	}
	execute(t, pool, `SELECT outbox.enqueue(kind, queue => queue`+options+`)
		FROM (VALUES ('work', 'default'), ('work', 'mail'), ('fail', 'default'), ('away', 'default'), ('nobody', 'default')) AS j (kind, queue)`)
	execute(t, pool, `SELECT outbox.publish(topic, '{}', key => gen_random_uuid()::text) FROM unnest(ARRAY['paid', 'fail']) AS e (topic)`)
}

func execute(t *testing.T, pool *pgxpool.Pool, sql string) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), sql); err != nil {
		t.Fatal(err)
	}
}
