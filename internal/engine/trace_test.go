package engine_test

import (
	"testing"

	"github.com/posthaste-dev/posthaste/internal/engine"
)

// The cost of spans without tracing, for a call of Enqueue and for an attempt. Compare it with client_cpu_us_per_job of
// the benchmark of a burn-down.
func BenchmarkNoTracing(b *testing.B) {
	for b.Loop() {
		if engine.Tracing() != nil {
			b.Fatal("somebody has installed it")
		}
	}
}

// Of two installed tracers, removing the first does not remove the second.
func TestATracerIsRemovedByItsOwnInstallation(t *testing.T) {
	type none struct{ engine.Tracer }
	before := engine.SetTracing(none{})
	after := engine.SetTracing(none{})
	if before(); engine.Tracing() == nil {
		t.Error("the first removal has removed the second tracer")
	}
	if after(); engine.Tracing() != nil {
		t.Error("the tracer is still there")
	}
}
