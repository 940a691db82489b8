package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Events are published though the relay that publishes is killed again and again, and the
// broker once: each that was committed, no other, each key in the order of its lock, and each
// once, because the broker knows the ids.
func TestEventsSurviveTheirRelaysAndTheirBroker(t *testing.T) {
	s := newStory(t)
	broker := natstest.Start(t, natstest.Options{})
	stream := broker.Connect()
	if _, err := stream.CreateStream(t.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}}); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "relay.yaml")
	if err := os.WriteFile(config, []byte("sinks:\n  shop: {nats: {url: \""+broker.URL+"\"}}\n"+
		"routes:\n  - {topics: [\"*\"], to: shop, destination: \"shop.{key|token}\"}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay := func(name string) *process {
		return s.serve(name, "OUTBOX_ROLE=relay", "OUTBOX_RELAY_CONFIG="+config).ready()
	}
	relays := []*process{relay("a"), relay("b")}
	stop := s.placeOrders(t)

	for kill := range 3 {
		s.await("an owner", func() bool { return s.owner() != "" })
		owner := s.owner()
		for i, r := range relays {
			if strings.Contains(owner, fmt.Sprintf("-%d-", r.PID())) {
				r.kill9()
				relays[i] = relay(fmt.Sprintf("%s%d", r.Name[:1], kill))
			}
		}
		if kill == 1 {
			broker.Kill()
			time.Sleep(time.Second)
			broker.Restart()
		}
		s.await("another owner", func() bool { return s.owner() != owner })
		time.Sleep(500 * time.Millisecond)
	}
	committed := stop()
	s.await("all to be published", func() bool {
		return s.count(`SELECT count(*) FROM outbox.sinks WHERE top >= (SELECT max(position) FROM outbox.events) AND isempty(holes)`) == 1
	})

	if len(committed) < 1000 {
		t.Errorf("%d events were committed, too few to show anything", len(committed))
	}
	last := map[string]int{}
	for _, m := range natstest.Drain(t, broker.Connect(), "SHOP") {
		body := string(m.Data)
		if !committed[body] {
			t.Errorf("%s was published twice, or never committed", body)
		}
		delete(committed, body)
		var n int
		key := strings.TrimPrefix(m.Subject, "shop.")
		if _, err := fmt.Sscanf(body, key+":%d", &n); err != nil {
			t.Fatal(err)
		}
		if n <= last[key] {
			t.Errorf("%s: %d was published after %d", key, n, last[key])
		}
		last[key] = n
	}
	if len(committed) > 0 {
		t.Errorf("%d events were never published, such as %v", len(committed), anyOf(committed))
	}
}

func anyOf(set map[string]bool) string {
	for e := range set {
		return e
	}
	return ""
}

func (s *story) owner() string {
	s.Helper()
	for _, owner := range s.texts(`SELECT owner FROM outbox.sinks WHERE lease_expires_at > clock_timestamp()`) {
		return owner
	}
	return ""
}

// placeOrders has four producers lock one of ten orders at a time and publish its next
// number, and take one in ten back. stop returns what was committed.
func (s *story) placeOrders(t *testing.T) (stop func() map[string]bool) {
	t.Helper()
	if _, err := s.db.Exec(t.Context(), `CREATE TABLE placed AS SELECT 'o' || i AS id, 0 AS n FROM generate_series(0, 9) AS i`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	committed := map[string]bool{}
	var mu sync.Mutex
	var producing sync.WaitGroup
	for seed := range 4 {
		producing.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(seed)))
			for ctx.Err() == nil {
				body, err := s.placeOrder(context.WithoutCancel(ctx), random)
				if err != nil {
					t.Error(err)
					return
				}
				if body != "" {
					mu.Lock()
					committed[body] = true
					mu.Unlock()
				}
				time.Sleep(time.Millisecond)
			}
		})
	}
	return func() map[string]bool {
		cancel()
		producing.Wait()
		return committed
	}
}

// placeOrder returns "" for an order that was taken back.
func (s *story) placeOrder(ctx context.Context, random *rand.Rand) (body string, err error) {
	tx, err := s.db.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback(ctx) }()
	id := fmt.Sprintf("o%d", random.IntN(10))
	var n int
	if err := tx.QueryRow(ctx, `UPDATE placed SET n = n + 1 WHERE id = $1 RETURNING n`, id).Scan(&n); err != nil {
		return "", err
	}
	body = fmt.Sprintf("%s:%d", id, n)
	if err := s.publish(ctx, tx, id, body); err != nil {
		return "", err
	}
	time.Sleep(time.Duration(random.IntN(4)) * time.Millisecond)
	if random.IntN(10) == 0 {
		return "", nil
	}
	return body, tx.Commit(ctx)
}

func (s *story) publish(ctx context.Context, tx pgx.Tx, key, body string) error {
	_, err := tx.Exec(ctx, `WITH stored AS (
			INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload) VALUES ($1, $2, 'order.placed', $3, 'text/plain', $4))
		SELECT pg_notify('outbox_events', '')`, outbox.NewID(), outbox.RootTenant, key, []byte(body))
	return err
}
