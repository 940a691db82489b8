package outbox

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// nowhere takes every statement.
type nowhere struct{}

func (nowhere) Exec(context.Context, string, ...any) (tag pgconn.CommandTag, err error) {
	return tag, nil
}
func (nowhere) Query(context.Context, string, ...any) (rows pgx.Rows, err error) { return nil, nil }
func (nowhere) QueryRow(context.Context, string, ...any) pgx.Row                 { return nil }

type untraced struct{ N int }

func (untraced) Kind() string  { return "untraced" }
func (untraced) Topic() string { return "untraced" }

// A program without package tracing allocates nothing for it.
func TestWithoutTracingNothingIsPaidForIt(t *testing.T) {
	ctx, db := t.Context(), nowhere{}
	var args Args = untraced{1}
	var event Event = untraced{1}
	for name, call := range map[string]struct{ all, bare func() error }{
		"Enqueue": {
			func() error { _, err := Enqueue(ctx, db, args, Options{}); return err },
			func() error { _, err := storeJob(ctx, db, args, new(Options), true); return err },
		},
		"Publish": {
			func() error { _, err := Publish(ctx, db, event, EventOptions{}); return err },
			func() error { _, err := storeEvent(ctx, db, event, EventOptions{}, true); return err },
		},
		"EnqueueMany": {
			func() error { _, err := EnqueueMany(ctx, db, []Request{{Args: args}}); return err },
			func() error { _, err := storeMany(ctx, db, []Request{{Args: args}}, true); return err },
		},
	} {
		count := func(f func() error) float64 {
			return testing.AllocsPerRun(1000, func() {
				if err := f(); err != nil {
					t.Fatal(err)
				}
			})
		}
		if all, bare := count(call.all), count(call.bare); all != bare || bare == 0 {
			t.Errorf("%s allocates %v times, and what it does without looking for a tracer %v", name, all, bare)
		}
	}
}

// BenchmarkEnqueueWithoutTracing measures a call of Enqueue without the database, in a program without package tracing.
// It reports how often the call allocates for tracing, and how long it looks for a tracer, in nanoseconds and in
// hundredths of the call.
func BenchmarkEnqueueWithoutTracing(b *testing.B) {
	ctx, db := b.Context(), nowhere{}
	var args Args = untraced{1}
	all := func() { _, _ = Enqueue(ctx, db, args, Options{}) }
	bare := func() { _, _ = storeJob(ctx, db, args, new(Options), true) }
	for b.Loop() {
		all()
	}
	call := float64(b.Elapsed()) / float64(b.N)
	look := lookForTracer(b)
	b.ReportMetric(testing.AllocsPerRun(1000, all)-testing.AllocsPerRun(1000, bare), "trace-allocs/op")
	b.ReportMetric(look, "trace-ns/op")
	b.ReportMetric(100*look/call, "trace-%")
}

// lookForTracer returns how many nanoseconds it takes to find that there is no tracer, which an enqueue does once.
func lookForTracer(t testing.TB) float64 {
	const looks = 1e6
	began := time.Now()
	for range int(looks) {
		if engine.Tracing() != nil {
			t.Fatal("somebody has installed it")
		}
	}
	return float64(time.Since(began)) / looks
}

// Tracing that is off costs less than a hundredth of a call of Enqueue, even of one that reaches no database.
func TestTracingThatIsOffCostsLessThanAHundredth(t *testing.T) {
	const tries, calls = 5, 20_000 // the machine may be busy, but each time?
	var share float64
	for range tries {
		began := time.Now()
		for range calls {
			_, _ = Enqueue(t.Context(), nowhere{}, untraced{1}, Options{})
		}
		call := float64(time.Since(began)) / calls
		look := lookForTracer(t)
		if share = look / call; share < 0.01 {
			t.Logf("%.1f ns of %.0f ns", look, call)
			return
		}
	}
	t.Errorf("tracing that is off takes %.2f %% of a call of Enqueue, want less than 1 %%", 100*share)
}
