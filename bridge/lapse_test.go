package bridge_test

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// cut ends all connections through the proxy until restore is called.
func cut(t *testing.T, proxy *fault.Proxy) (restore func()) {
	t.Helper()
	away, restore := context.WithCancel(t.Context())
	t.Cleanup(restore)
	go func() {
		for away.Err() == nil {
			proxy.CutAll()
			time.Sleep(time.Millisecond)
		}
	}()
	return restore
}

// A process that cannot reach the database, but can reach the broker, releases its source when its lease has lapsed: as
// a member of a consumer group it would keep messages from the process that has the bridge by then.
func TestAProcessWithoutItsDatabaseReleasesItsSource(t *testing.T) {
	t.Parallel()
	for name, more := range map[string]int{"with messages to store": 20, "without messages": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.New(t)
			proxy, url, err := fault.NewProxy(db.Config().ConnString())
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(proxy.Close)
			one, two := newSource(ordersUpTo(5)...), newSource(ordersUpTo(30)...)
			start(t, connect(t, url), bridge.BridgeConfig{Source: one})
			await(t, "one works", 10*time.Second, func() bool { _, acked := one.counts(); return acked == 5 })
			restore := cut(t, proxy)
			one.add(ordersUpTo(more)...)
			start(t, db, bridge.BridgeConfig{Source: two})
			await(t, "one releases its source", 30*time.Second, func() bool { return one.releases() > 0 })
			await(t, "the other one works", 30*time.Second, func() bool { _, acked := two.counts(); return acked == 30 })
			restore()
		})
	}
}

// A process that waits for the bridge, and has missed the database meanwhile, does not count that as an outage of the
// bridge once the database answers.
func TestAStandbyForgetsAnOutage(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	proxy, url, err := fault.NewProxy(db.Config().ConnString())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	one := newSource()
	start(t, db, bridge.BridgeConfig{Source: one})
	await(t, "one fetches", 10*time.Second, func() bool { n, _ := one.counts(); return n > 0 })
	reg := prometheus.NewRegistry()
	standby, err := bridge.New(connect(t, url), bridge.Config{Registerer: reg, Bridges: []bridge.BridgeConfig{
		{Name: "orders", Source: newSource(), Kind: "order.received"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- standby.Run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	await(t, "the other one waits", 10*time.Second, func() bool { return standby.Ready() == nil })
	stalled := func() float64 { return gauge(t, reg, "outbox_bridge_stalled_seconds") }
	restore := cut(t, proxy)
	await(t, "it misses the database", 10*time.Second, func() bool { return stalled() > 0 })
	restore()
	await(t, "it has the database again", 10*time.Second, func() bool { return stalled() == 0 })
}
