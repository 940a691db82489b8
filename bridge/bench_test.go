package bridge_test

import (
	"context"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
)

// How many messages of a source that has them at once become jobs in a second.
func BenchmarkBridge(b *testing.B) {
	for name, key := range map[string]string{"without keys": "", "with a key each": "k"} {
		b.Run(name, func(b *testing.B) {
			db := pgtest.New(b)
			all := ordersUpTo(b.N)
			for i := range all {
				if key != "" {
					all[i].Key = all[i].ID
				}
			}
			s := newSource(all...)
			r, err := bridge.New(db, bridge.Config{Bridges: []bridge.BridgeConfig{{Name: "orders", Source: s, Kind: "order.received", Ordered: key != ""}}})
			if err != nil {
				b.Fatal(err)
			}
			ctx, cancel := context.WithCancel(b.Context())
			done := make(chan error, 1)
			b.ResetTimer()
			go func() { done <- r.Run(ctx) }()
			for acked := 0; acked < b.N; time.Sleep(time.Millisecond) {
				_, acked = s.counts()
			}
			b.StopTimer()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
			cancel()
			if err := <-done; err != nil {
				b.Error(err)
			}
		})
	}
}
