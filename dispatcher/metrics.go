package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/posthaste-dev/posthaste/outbox"
)

// metrics holds the dispatcher's metrics. Dashboards and alerts depend on the job_ names and their labels
// (docs/operate/operations.md); the others begin with outbox_dispatcher_.
type metrics struct {
	claimed        *prometheus.CounterVec
	completed      *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	processing     *prometheus.HistogramVec
	startDelay     *prometheus.HistogramVec
	polls          prometheus.Counter
	claimBatch     prometheus.Observer
	settleBatch    prometheus.Observer
	leasesLost     prometheus.Counter
	extensionsLate prometheus.Counter
	overruns       *prometheus.CounterVec
	atLimit        *prometheus.CounterVec
	unavailable    *prometheus.GaugeVec
	slots, busy    *prometheus.GaugeVec
}

// kindMetrics holds the metrics of one kind, looked up once.
type kindMetrics struct {
	claimed                prometheus.Counter
	completed              map[outbox.Status]prometheus.Counter // jobs that ended
	attempts               map[string]prometheus.Counter
	processing, startDelay prometheus.Observer
	overruns               prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // nil registers nowhere, and still counts
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, labels)
	}
	seconds := prometheus.ExponentialBuckets(0.0005, 2.5, 14) // 0.5 ms to 75 s
	sizes := prometheus.ExponentialBuckets(1, 4, 6)           // 1 to 1024
	m := &metrics{
		claimed: counter("job_claimed_total", "Jobs claimed.", "job_type", "worker_id"),
		completed: counter("job_completed_total",
			"Jobs that ended: success, failed (permanently, by the handler's decision) or dead (attempts exhausted).",
			"job_type", "status"),
		attempts: counter("outbox_dispatcher_attempts_total", "Settled attempts by what became of the job.",
			"job_type", "outcome"),
		processing: histogram("job_processing_seconds", "Time a handler took for one attempt.", seconds,
			"job_type"),
		startDelay: histogram("outbox_dispatcher_enqueue_to_start_seconds",
			"Time from when a job became due until its handler started.", seconds, "job_type"),
		polls: counter("job_poll_scanned_total",
			"Polls for due jobs that a timer caused: startup, poll interval, or a job's own start time.").WithLabelValues(),
		claimBatch: histogram("outbox_dispatcher_claim_batch_size", "Jobs that one claiming statement got.",
			sizes).WithLabelValues(),
		settleBatch: histogram("outbox_dispatcher_settle_batch_size", "Outcomes that were settled together.",
			sizes).WithLabelValues(),
		leasesLost: counter("outbox_dispatcher_leases_lost_total",
			"Outcomes that the database refused because the lease had been lost.").WithLabelValues(),
		extensionsLate: counter("outbox_dispatcher_extensions_late_total",
			"Lease extensions that were sent after we had stopped trusting the lease.").WithLabelValues(),
		overruns: counter("outbox_dispatcher_overruns_total",
			"Attempts whose handler had not returned 5 s after its time was over.", "job_type"),
		atLimit: counter("outbox_dispatcher_limit_stops_total",
			"Claims that a queue's limit kept from taking more: max_running, rate, or paused.", "queue", "limit"),
		unavailable: gauge("outbox_dispatcher_kind_unavailable",
			"1 while the jobs of a kind wait because its dependency is unavailable, else 0.", "job_type", "queue"),
		slots: gauge("outbox_dispatcher_slots",
			"Handlers of the queue that this process runs at once, at most.", "queue"),
		busy: gauge("outbox_dispatcher_slots_busy",
			"Handlers of the queue that run, each with a job or a batch of them.", "queue"),
	}
	return m
}

// forQueue creates every series of a queue with so many slots, so that rates start at zero.
func (m *metrics) forQueue(queue string, slots int) {
	m.slots.WithLabelValues(queue).Set(float64(slots))
	for _, limit := range []string{"max_running", "rate", "paused"} {
		m.atLimit.WithLabelValues(queue, limit)
	}
}

// forKind creates every series of a kind, so that rates start at zero. worker must be a name that survives restarts;
// otherwise each restart would create new series.
func (m *metrics) forKind(kind, worker string) *kindMetrics {
	k := &kindMetrics{
		claimed: m.claimed.WithLabelValues(kind, worker),
		completed: map[outbox.Status]prometheus.Counter{
			outbox.Succeeded: m.completed.WithLabelValues(kind, "success"),
			outbox.Failed:    m.completed.WithLabelValues(kind, "failed"),
			outbox.Dead:      m.completed.WithLabelValues(kind, "dead"),
		},
		attempts:   map[string]prometheus.Counter{},
		processing: m.processing.WithLabelValues(kind),
		startDelay: m.startDelay.WithLabelValues(kind),
		overruns:   m.overruns.WithLabelValues(kind),
	}
	for _, outcome := range []string{"succeeded", "retrying", "failed", "dead", "pending", "cancelled", "expired"} {
		k.attempts[outcome] = m.attempts.WithLabelValues(kind, outcome)
	}
	return k
}
