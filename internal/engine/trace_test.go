package engine_test

import (
	"testing"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// What a call of Enqueue, and an attempt, pay for spans that nobody asked for: to see it beside what else they do, set
// it against client_cpu_us_per_job of the benchmark of a burn-down.
func BenchmarkNoTracing(b *testing.B) {
	for b.Loop() {
		if engine.Tracing() != nil {
			b.Fatal("somebody has installed it")
		}
	}
}
