package reaper

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// depths returns the gauge of each kind.
func depths(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "job_queue_depth" {
			for _, m := range f.GetMetric() {
				found[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func TestDepthIsSampled(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r, db := newRig(t, Config{Registerer: reg})
	sample := func(want map[string]float64, deadLetters float64, oldest float64) {
		t.Helper()
		if _, err := r.sampleDepth(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := depths(t, reg); !maps.Equal(got, want) {
			t.Errorf("job_queue_depth = %v, want %v", got, want)
		}
		if got := value(t, r.metrics.deadLetters); got != deadLetters {
			t.Errorf("dead letters = %v, want %v", got, deadLetters)
		}
		if got := value(t, r.metrics.oldestDue); got < oldest || got > oldest+30 {
			t.Errorf("the oldest due job is due for %v s, want %v", got, oldest)
		}
	}
	sample(map[string]float64{}, 0, 0)

	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload, status, run_at)
		SELECT outbox.uuid_v7(), kind, '', status::outbox.job_status, now() + due::interval
		FROM (VALUES ('mail', 'pending', '-100 s'), ('mail', 'retrying', '-50 s'), ('mail', 'pending', '1 hour'), ('mail', 'dead', '-1 day'),
		             ('bill', 'pending', '1 hour'), ('bill', 'failed', '-1 day'), ('held', 'created', '-1 day')) AS job(kind, status, due)`)
	storeRunning(t, db, 1, time.Minute)
	sample(map[string]float64{"mail": 3, "bill": 1, "held": 0, "test": 0}, 2, 100)

	exec(t, db, `DELETE FROM outbox.jobs WHERE kind <> 'bill'`)
	sample(map[string]float64{"mail": 0, "bill": 1, "held": 0, "test": 0}, 1, 0)
	sample(map[string]float64{"bill": 1}, 1, 0)
}

func TestOnlyTheDeepestKindsHaveAGauge(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	r, db := newRig(t, Config{Registerer: reg})
	exec(t, db, `
		INSERT INTO outbox.jobs (id, kind, payload)
		SELECT outbox.uuid_v7(), 'kind-' || k, '' FROM generate_series(1, 120) AS k, generate_series(1, k)`)
	if _, err := r.sampleDepth(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := depths(t, reg)
	if len(got) != 101 || got["kind-120"] != 120 || got["kind-21"] != 21 || got["other"] != 20*21/2 {
		t.Errorf("%d gauges, kind-120 %v, kind-21 %v, other %v, want 101, 120, 21, 210", len(got), got["kind-120"], got["kind-21"], got["other"])
	}
}
