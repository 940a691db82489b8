package jobs_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/jobs"
)

// null takes everything.
type null struct {
	sink
	seen func(n int)
}

func (n *null) Publish(_ context.Context, batch []relay.Message) []error {
	n.seen(len(batch))
	return make([]error, len(batch))
}

// BenchmarkBurnDown measures 20,000 jobs, by a handler of batches that does nothing, and by a sink that takes
// everything.
func BenchmarkBurnDown(b *testing.B) {
	const n = 20_000
	all := make([]outbox.Request, n)
	payload := []byte(`{"OrderID": 7, "text": "paid"}`)
	for i := range all {
		all[i] = outbox.Request{Args: outbox.Raw{KindName: "order.announce", Payload: payload}}
	}
	for _, how := range []string{"HandleMany", "sink"} {
		b.Run(how, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				db := pgtest.New(b)
				for from := 0; from < n; from += 5000 {
					if _, err := outbox.EnqueueMany(b.Context(), db, all[from:from+5000]); err != nil {
						b.Fatal(err)
					}
				}
				var left atomic.Int64
				left.Store(n)
				done := make(chan struct{})
				seen := func(n int) {
					if left.Add(-int64(n)) == 0 {
						close(done)
					}
				}
				var mux dispatcher.Mux
				batch := dispatcher.BatchConfig{Max: 1000}
				if how == "sink" {
					jobs.Handle(&mux, "order.announce", &null{seen: seen}, jobs.Mapping{Batch: batch})
				} else {
					mux.HandleManyRaw("order.announce", func(_ context.Context, claimed []*outbox.Claimed) []error {
						seen(len(claimed))
						return make([]error, len(claimed))
					}, batch)
				}
				d, err := dispatcher.New(db, &mux, dispatcher.Config{Wake: listener.NewSignal()})
				if err != nil {
					b.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				ended := make(chan error, 1)
				b.StartTimer()
				go func() { ended <- d.Run(ctx) }()
				<-done
				cancel()
				if err := <-ended; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "jobs/s")
		})
	}
}
