package bridge_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/operator"
)

// What a bridge is kept from storing shows in its metrics and to operators, and how many it has stored.
func TestABridgeSaysHowFarItIs(t *testing.T) {
	t.Parallel()
	db := pgtest.New(t)
	reg := prometheus.NewRegistry()
	source := newSource(ordersUpTo(1000)...)
	b, err := bridge.New(db, bridge.Config{Registerer: reg, Bridges: []bridge.BridgeConfig{
		{Name: "orders", Source: source, Kind: "order.received", MaxQueued: 600},
	}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- b.Run(ctx) }()
	is := func(what string, want func() bool) { await(t, what, 10*time.Second, want) }
	is("the full queue keeps it", func() bool {
		return gauge(t, reg, "outbox_bridge_stalled_seconds") > 0 && gauge(t, reg, "outbox_bridge_lag_messages") == 400 && gauge(t, reg, "outbox_bridge_owned") == 1
	})
	stored := func() int { return ask[int](t, db, `SELECT position FROM outbox.inbox_positions`) }
	if n := stored(); n != 600 {
		t.Errorf("%d messages are stored, want 600", n)
	}
	shown := func() operator.Bridge {
		all, err := operator.New(db).Bridges(t.Context())
		if err != nil || len(all) != 1 {
			t.Fatalf("bridges are %+v: %v", all, err)
		}
		return all[0]
	}
	is("operators see why", func() bool { // and that since a moment, not each time anew
		s := shown()
		return s.State() == "away" && s.Lag != nil && *s.Lag == 400 && strings.Contains(s.AwayReason, "MaxQueued is 600") && time.Since(s.AwaySince) > time.Second
	})
	exec(t, db, `DELETE FROM outbox.jobs`)
	is("it goes on", func() bool {
		return gauge(t, reg, "outbox_bridge_stalled_seconds") == 0 && gauge(t, reg, "outbox_bridge_lag_messages") == 0 && stored() == 1000
	})
	is("operators see that it does", func() bool {
		s := shown()
		return s.State() == "fetching" && *s.Lag == 0 && s.AwaySince.IsZero() && s.AwayReason == ""
	})
	source.fail(errors.New("no such stream"))
	is("operators see that the broker is away", func() bool { return strings.HasSuffix(shown().AwayReason, "fetch messages: no such stream") })
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if gauge(t, reg, "outbox_bridge_owned") != 0 {
		t.Error("a process that has stopped says that it fetches")
	}
	if s := shown(); s.State() != "waiting" || s.Lag != nil || !s.AwaySince.IsZero() {
		t.Errorf("nobody fetches, and the bridge is %+v", s)
	}
}

// gauge returns the value of a metric of one bridge.
func gauge(t *testing.T, reg *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("there is no metric %s", name)
	return 0
}
