package outboxtest_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/pgtest"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/outboxtest"
)

// A hundred tests take six seconds at most, which is a thousand a minute. They take less than half a second on two
// quiet cores, and this test is not parallel.
func TestAThousandTestsTakeAMinuteAtMost(t *testing.T) {
	pool := pgtest.New(t)
	mux := handle(done)
	began := time.Now()
	for range 100 {
		wholeTest(t, pool, mux)
	}
	took := time.Since(began)
	t.Logf("100 tests took %s", took)
	if took > 6*time.Second {
		t.Errorf("100 tests took %s, want 6 s at most", took)
	}
}

// BenchmarkTest measures a whole test each time.
func BenchmarkTest(b *testing.B) {
	pool := pgtest.New(b)
	mux := handle(done)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			wholeTest(b, pool, mux)
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Minutes(), "tests/min")
}

// wholeTest enqueues, requires and drains a job in a transaction that it rolls back.
func wholeTest(tb testing.TB, pool *pgxpool.Pool, mux *dispatcher.Mux) {
	t := &oneTest{TB: tb}
	defer t.end()
	db := outboxtest.New(t, pool)
	enqueue(t, db, receipt{Order: 7}, outbox.Options{})
	outboxtest.RequireEnqueued(t, db, receipt{Order: 7})
	if got := statuses(outboxtest.NewWorker(t, db, mux, outboxtest.Config{}).Drain()); got != "succeeded" {
		tb.Errorf("got %s", got)
	}
}

// oneTest is a test that ends before the one around it.
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
