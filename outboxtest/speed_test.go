package outboxtest_test

import (
	"slices"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// BenchmarkTest measures a whole test each time: a transaction, a job that is enqueued, required, and drained, and the
// rollback.
func BenchmarkTest(b *testing.B) {
	pool := pgtest.New(b)
	mux := handle(done)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			t := &oneTest{TB: b}
			db := outboxtest.New(t, pool)
			enqueue(t, db, receipt{Order: 7}, outbox.Options{})
			outboxtest.RequireEnqueued(t, db, receipt{Order: 7})
			if got := statuses(outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Drain()); got != "succeeded" {
				b.Errorf("got %s", got)
			}
			t.end()
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Minutes(), "tests/min")
}

// oneTest is a test that ends before its benchmark.
type oneTest struct {
	testing.TB
	cleanups []func()
}

func (t *oneTest) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }

func (t *oneTest) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}
