package relay_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
)

// lags is a sink that notes how long ago the events that it gets were stored: their bodies begin with the time.
type lags struct {
	recorder
	took []time.Duration
}

func (l *lags) Publish(_ context.Context, batch []relay.Message) []error {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, m := range batch {
		if len(m.Body) == 8 {
			l.took = append(l.took, now.Sub(time.Unix(0, int64(binary.BigEndian.Uint64(m.Body)))))
		}
	}
	return make([]error, len(batch))
}

// taken waits for n events, and returns the middle one of their lags and the one that one in a hundred exceeds.
func (l *lags) taken(t *testing.T, n int) (p50, p99 time.Duration) {
	t.Helper()
	have := func() []time.Duration {
		l.mu.Lock()
		defer l.mu.Unlock()
		return slices.Clone(l.took)
	}
	waitFor(t, func() bool { return len(have()) >= n }, func() string { return fmt.Sprintf("a sink has %d of %d events", len(have()), n) })
	took := have()
	slices.Sort(took)
	l.mu.Lock()
	l.took = nil
	l.mu.Unlock()
	return took[len(took)/2], took[len(took)*99/100]
}

// sluggish is a sink like a broker behind a thin line: a megabyte a second, and an answer two seconds later.
type sluggish struct {
	recorder
	largest int // bytes of a batch
}

func (s *sluggish) Publish(ctx context.Context, batch []relay.Message) []error {
	bytes := 0
	for _, m := range batch {
		bytes += len(m.Body)
	}
	s.mu.Lock()
	s.largest = max(s.largest, bytes)
	s.mu.Unlock()
	outcomes := make([]error, len(batch))
	select {
	case <-ctx.Done():
		for i := range outcomes {
			outcomes[i] = ctx.Err()
		}
	case <-time.After(time.Duration(bytes)*time.Microsecond + 2*time.Second):
	}
	return outcomes
}

// TestSinksDoNotDelayEachOther measures three sinks beside one whose broker is away, one of which 200 keys are held,
// and one that is slow and far behind, with large events; and at the same time three sinks of another database, which
// have nothing beside them and the same machine.
func TestSinksDoNotDelayEachOther(t *testing.T) {
	const events, heldKeys, bulky = 300, 200, 6000
	db, control := database(t), database(t)
	well, alone := []*lags{{}, {}, {}}, []*lags{{}, {}, {}}
	unreachable, slow := &recorder{}, &sluggish{}
	unreachable.set(func(relay.Message) error { return away }, away)
	refusing := &picky{refuses: tooLarge(bad)}

	sinkConfig := func(name string, s relay.Sink) relay.SinkConfig {
		return relay.SinkConfig{Name: name, Sink: s, Routes: []relay.Route{{Topics: []string{"*"}, CloudEvents: relay.CloudEventsOff}}}
	}
	healthy := func(sinks []*lags) (configs []relay.SinkConfig) {
		for i, s := range sinks {
			configs = append(configs, sinkConfig(fmt.Sprintf("well-%d", i), s))
		}
		return configs
	}
	for i := range heldKeys {
		publish(t, db, "picked", fmt.Sprintf("held-%d", i), "bad")
	}
	body := make([]byte, 8000)
	if _, err := db.Exec(t.Context(), `INSERT INTO outbox.events (id, tenant_id, topic, key, content_type, payload)
		SELECT gen_random_uuid(), $1, 'bulk', 'k' || n % 100, 'text/plain', $2 FROM generate_series(1, $3) n`,
		outbox.RootTenant, body, bulky); err != nil {
		t.Fatal(err)
	}
	start(t, db, nil, func(c *relay.Config) {
		c.Sinks = append(healthy(well), sinkConfig("away", unreachable), sinkConfig("slow", slow), sinkConfig("s", refusing))
	})
	start(t, control, nil, func(c *relay.Config) { c.Sinks = healthy(alone) })
	deadLetters(t, db, heldKeys)
	heap := peak(t)
	var alone50, alone99 time.Duration
	var controlling sync.WaitGroup
	controlling.Go(func() { alone50, alone99 = paced(t, control, alone, events) })
	beside50, beside99 := paced(t, db, well, events)
	controlling.Wait()
	most := heap()
	slow.mu.Lock()
	largest := slow.largest
	slow.mu.Unlock()
	t.Logf("from commit to publication, three sinks alone: p50 %v, p99 %v; beside the others: p50 %v, p99 %v; heap %d MiB more, a batch of %d KiB",
		alone50, alone99, beside50, beside99, most>>20, largest>>10)
	if largest == 0 {
		t.Error("the slow sink has had nothing")
	}
	if beside50 > 3*alone50+50*time.Millisecond { // a wait for another sink is seconds
		t.Errorf("p50 is %v beside sinks that are away, slow and held up, and %v alone", beside50, alone50)
	}
	if limit := 64<<20 + 4*largest; most > limit {
		t.Errorf("the heap grew by %d MiB, want %d at most", most>>20, limit>>20)
	}
}

// paced publishes so many events, one each 5 ms, and returns the worst lags of the sinks.
func paced(t *testing.T, db outbox.DB, sinks []*lags, n int) (p50, p99 time.Duration) {
	t.Helper()
	ticks := time.NewTicker(5 * time.Millisecond)
	defer ticks.Stop()
	for i := range n {
		<-ticks.C
		publish(t, db, "paced", fmt.Sprintf("key-%d", i%50), string(binary.BigEndian.AppendUint64(nil, uint64(time.Now().UnixNano()))))
	}
	for _, s := range sinks {
		half, most := s.taken(t, n)
		p50, p99 = max(p50, half), max(p99, most)
	}
	return p50, p99
}

// peak samples the heap until the returned function is called, which tells by how many bytes it was larger than now
// at most.
func peak(t *testing.T) (most func() int) {
	t.Helper()
	use := func() int {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapInuse)
	}
	runtime.GC()
	begin, highest := use(), 0
	done := make(chan struct{})
	var sampling sync.WaitGroup
	sampling.Go(func() {
		for {
			highest = max(highest, use())
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	return func() int { close(done); sampling.Wait(); return highest - begin }
}
