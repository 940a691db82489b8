package dispatcher

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
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

// Tracing that is off costs less than a hundredth of an attempt, even of one whose handler does nothing and whose
// outcome is not stored. Each round measures both, so that a busy machine slows both; most rounds decide.
func TestTracingThatIsOffCostsLessThanAHundredth(t *testing.T) {
	q, keeper := idleQueue(t, nil), lease.NewKeeper(lease.Config{TTL: time.Hour})
	const rounds, calls = 21, 2000
	attempts := make([]attempt, calls)
	shares := make([]float64, rounds)
	for round := range shares {
		for i := range attempts {
			job := newJob(tiny{}.Kind(), outbox.RootTenant, 0, "")
			attempts[i] = attempt{
				job: job, lease: lease.Lease{Job: job, Claimed: time.Now()}, route: q.routes[job.Kind], traced: t.Context(),
			}
			keeper.Add(slices.Values([]*lease.Lease{&attempts[i].lease}))
		}
		began := time.Now()
		for i := range attempts {
			carryOut(q.common, &attempts[i], func(time.Duration, bool) {})
		}
		all := time.Since(began)
		if o := attempts[calls-1].outcome; o.Status != outbox.Succeeded {
			t.Fatalf("the attempt ended as %v, want a handler that succeeds", o)
		}
		ctx, ended := t.Context(), &attempts[calls-1]
		began = time.Now()
		for range calls {
			q.common.trace(ctx, ended)
			endSpan(ended)
		}
		shares[round] = float64(time.Since(began)) / float64(all)
	}
	slices.Sort(shares)
	if median := shares[rounds/2]; median >= 0.01 {
		t.Errorf("tracing that is off takes %.2f %% of an attempt, want less than 1 %%", 100*median)
	} else {
		t.Logf("%.2f %%", 100*median)
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
