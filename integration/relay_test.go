package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/posthaste-dev/posthaste/internal/natstest"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A relay is stopped for longer than its lease, and another takes over. When it continues, it neither moves the cursor
// nor takes the sink back. What it still sends are repeats, at most as many as it had under way.
func TestARelayThatStoodStillIsRefused(t *testing.T) {
	s := newStory(t)
	const briefly = 100 * time.Millisecond
	r := s.relays(briefly)
	relays := []*process{r.hire("a"), r.hire("b")}
	stop := s.placeOrders(t)

	const times = 2
	for range times {
		owner, at := r.owner(relays)
		s.await("the cursor to move", func() bool { return s.count(`SELECT top FROM outbox.sinks`) > 0 })
		relays[at].signal(syscall.SIGSTOP)
		s.await("another owner", func() bool { next := s.owner(); return next != "" && next != owner })
		epoch := s.count(`SELECT epoch FROM outbox.sinks`)
		time.Sleep(500 * time.Millisecond) // it publishes
		relays[at].signal(syscall.SIGCONT)
		top := 0
		for began := time.Now(); time.Since(began) < 3*time.Second; time.Sleep(glance) {
			now := s.count(`SELECT top FROM outbox.sinks`)
			if now < top {
				t.Fatalf("the cursor went from %d back to %d", top, now)
			}
			top = now
		}
		if got := s.count(`SELECT epoch FROM outbox.sinks`); got != epoch {
			t.Errorf("the epoch is %d, and was %d when the one that had stood still went on", got, epoch)
		}
	}
	r.expectPublished(stop(), times*1000)
}

// A relay's clock does not affect what it does: while it jumps by two hours, back and forth, every event is published
// once and at once, the lease does not lapse, and the times that are shown of an outage are those of the database's
// clock.
func TestARelaysClockJumps(t *testing.T) {
	s := newStory(t)
	r := s.relays(100 * time.Millisecond)
	var clock *fault.Clock
	s.startPrepared(programs.posthaste, "jumping", func(pid int) (err error) {
		clock, err = fault.TakeClock(pid)
		return err
	}, r.env, "serve").ready()
	t.Cleanup(func() { _ = clock.Close() })
	stop := s.placeOrders(t)
	jump := func(off time.Duration) {
		if err := clock.Set(off); err != nil {
			t.Fatal(err)
		}
	}
	s.await("an owner", func() bool { return s.owner() != "" })
	for i := range 10 {
		jump(time.Hour * time.Duration(1-i%2*2))
		time.Sleep(300 * time.Millisecond)
	}
	for _, off := range []time.Duration{time.Hour, -time.Hour} {
		jump(off)
		r.broker.Kill()
		outage := `SELECT count(*) FROM outbox.sinks WHERE away_since IS NOT NULL`
		s.await("the outage to show", func() bool { return s.count(outage) == 1 })
		jump(-off)
		time.Sleep(time.Second)
		if n := s.count(outage + ` AND away_since BETWEEN clock_timestamp() - interval '1 minute' AND clock_timestamp()`); n != 1 {
			t.Errorf("with a clock that is off by %s the outage is said to have begun at %v", off, s.texts(`SELECT away_since::text FROM outbox.sinks`))
		}
		r.broker.Restart()
		s.await("the sink to go on", func() bool { return s.count(outage) == 0 })
	}
	if epoch := s.count(`SELECT epoch FROM outbox.sinks`); epoch != 1 {
		t.Errorf("the epoch is %d: the lease has lapsed", epoch)
	}
	r.expectPublished(stop(), 2*1000) // the broker was killed twice
}

// relays starts relays of a story, which publish to one stream.
type relays struct {
	*story
	broker *natstest.Server
	env    []string
}

// relays starts a broker that remembers message ids for a time, 0 for its default.
func (s *story) relays(remembers time.Duration) *relays {
	s.Helper()
	r := &relays{story: s, broker: natstest.Start(s.T, natstest.Options{})}
	_, err := r.broker.Connect().CreateStream(s.Context(), jetstream.StreamConfig{Name: "SHOP", Subjects: []string{"shop.>"}, Duplicates: remembers})
	if err != nil {
		s.Fatal(err)
	}
	config := filepath.Join(s.TempDir(), "relay.yaml")
	if err := os.WriteFile(config, []byte("sinks:\n  shop: {nats: {url: \""+r.broker.URL+"\"}}\n"+
		"routes:\n  - {topics: [\"*\"], to: shop, destination: \"shop.{key|token}\"}\n"), 0o600); err != nil {
		s.Fatal(err)
	}
	r.env = []string{"OUTBOX_ROLE=relay", "OUTBOX_RELAY_CONFIG=" + config}
	return r
}

func (r *relays) hire(name string) *process {
	r.Helper()
	return r.serve(name, r.env...).ready()
}

// owner waits for an owner of the sink, and returns it and the index of its process.
func (r *relays) owner(all []*process) (owner string, at int) {
	r.Helper()
	r.await("an owner", func() bool {
		owner = r.story.owner()
		at = slices.IndexFunc(all, func(p *process) bool { return strings.Contains(owner, fmt.Sprintf("-%d-", p.PID())) })
		return at >= 0
	})
	return owner, at
}

// expectPublished waits until everything is published, and compares the stream with what was committed: nothing else,
// each key in the order of its lock, and at most the given number of repeats.
func (r *relays) expectPublished(committed map[string]bool, repeats int) {
	r.Helper()
	r.await("all to be published", func() bool {
		return r.count(`SELECT count(*) FROM outbox.sinks WHERE top >= (SELECT max(position) FROM outbox.events) AND isempty(holes)`) == 1
	})
	if len(committed) < 300 { // of thousands on an idle machine
		r.Errorf("%d events were committed, too few to show anything", len(committed))
	}
	last, seen := map[string]int{}, map[string]bool{}
	for _, m := range natstest.Drain(r.T, r.broker.Connect(), "SHOP") {
		body := string(m.Data)
		if seen[body] {
			repeats--
			continue
		}
		seen[body] = true
		if !committed[body] {
			r.Errorf("%s was published, and never committed", body)
		}
		delete(committed, body)
		var n int
		key := strings.TrimPrefix(m.Subject, "shop.")
		if _, err := fmt.Sscanf(body, key+":%d", &n); err != nil {
			r.Fatal(err)
		}
		if n <= last[key] {
			r.Errorf("%s: %d was published after %d", key, n, last[key])
		}
		last[key] = n
	}
	if repeats < 0 {
		r.Errorf("there are %d repeats more than were allowed", -repeats)
	}
	if len(committed) > 0 {
		r.Errorf("%d events were never published, such as %v", len(committed), anyOf(committed))
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

// placeOrders starts four producers that each lock one of ten orders, publish its next number, and roll one transaction
// in ten back. The function that it returns stops them and returns what was committed.
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

// placeOrder returns the body of a committed event, "" for a transaction that it rolled back.
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
