package dispatcher

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A program without package tracing allocates nothing for it.
func TestWithoutTracingNothingIsPaidForIt(t *testing.T) {
	p, a := new(common), &attempt{job: new(outbox.Claimed)}
	observed := prometheus.NewHistogram(prometheus.HistogramOpts{Name: "x"})
	again := &attempt{job: &outbox.Claimed{Epoch: 2}} // its spans are not looked up, or this would panic
	batch := []*attempt{a, again}
	var ctx context.Context = t.Context()
	allocated := testing.AllocsPerRun(1000, func() {
		if p.trace(ctx, a) != ctx || p.trace(ctx, again) != ctx || spansOf(batch) != nil {
			t.Fatal("there is another context, or a span to store")
		}
		a.observe(observed, time.Second)
		endSpan(a)
	})
	if allocated != 0 {
		t.Errorf("%v allocations", allocated)
	}
}

// The cost of tracing for an attempt that is not traced: some nanoseconds of the five microseconds that a job takes.
func BenchmarkWithoutTracing(b *testing.B) {
	p, a := new(common), &attempt{job: new(outbox.Claimed)}
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		p.trace(ctx, a)
		endSpan(a)
	}
}
