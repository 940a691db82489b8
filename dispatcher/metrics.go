package dispatcher

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the dispatcher's. The job_ names and their labels are fixed by
// those who watch them (docs/operate/operations.md); the others are outbox_dispatcher_.
type metrics struct {
	claimed        *prometheus.CounterVec
	completed      *prometheus.CounterVec
	attempts       *prometheus.CounterVec
	processing     *prometheus.HistogramVec
	startDelay     *prometheus.HistogramVec
	polls          prometheus.Counter
	claimBatch     prometheus.Histogram
	settleBatch    prometheus.Histogram
	leasesLost     prometheus.Counter
	extensionsLate prometheus.Counter
	overruns       *prometheus.CounterVec
	atLimit        *prometheus.CounterVec
	unavailable    *prometheus.GaugeVec
	slots, busy    *prometheus.GaugeVec
}

// kindMetrics are one kind's, looked up once.
type kindMetrics struct {
	claimed                 prometheus.Counter
	succeeded, failed, dead prometheus.Counter // jobs
	attempts                map[string]prometheus.Counter
	processing, startDelay  prometheus.Observer
	overruns                prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // nil registers nowhere, and still counts
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{
			Name: name, Help: help, Buckets: buckets,
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100, NativeHistogramMinResetDuration: time.Hour,
		}
	}
	seconds := prometheus.ExponentialBuckets(0.0005, 2.5, 14) // 0.5 ms to 75 s
	sizes := prometheus.ExponentialBuckets(1, 4, 6)           // 1 to 1024
	m := &metrics{
		claimed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "job_claimed_total", Help: "Jobs claimed.",
		}, []string{"job_type", "worker_id"}),
		completed: f.NewCounterVec(prometheus.CounterOpts{
			Name: "job_completed_total", Help: "Jobs that ended: success, failed (permanently, by the handler's decision) or dead (attempts exhausted).",
		}, []string{"job_type", "status"}),
		attempts: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_dispatcher_attempts_total", Help: "Settled attempts by what became of the job.",
		}, []string{"job_type", "outcome"}),
		processing: f.NewHistogramVec(histogram("job_processing_seconds",
			"Time a handler took for one attempt.", seconds), []string{"job_type"}),
		startDelay: f.NewHistogramVec(histogram("outbox_dispatcher_enqueue_to_start_seconds",
			"Time from when a job became due until its handler started.", seconds), []string{"job_type"}),
		polls: f.NewCounter(prometheus.CounterOpts{
			Name: "job_poll_scanned_total", Help: "Polls for due jobs that a timer caused: startup, poll interval, or a job's own start time.",
		}),
		claimBatch: f.NewHistogram(histogram("outbox_dispatcher_claim_batch_size",
			"Jobs that one claiming statement got.", sizes)),
		settleBatch: f.NewHistogram(histogram("outbox_dispatcher_settle_batch_size",
			"Outcomes that were settled together.", sizes)),
		leasesLost: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_dispatcher_leases_lost_total", Help: "Outcomes that the database refused because the lease had been lost.",
		}),
		extensionsLate: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_dispatcher_extensions_late_total", Help: "Lease extensions that were sent after we had stopped trusting the lease.",
		}),
		overruns: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_dispatcher_overruns_total", Help: "Attempts whose handler had not returned 5 s after its time was over.",
		}, []string{"job_type"}),
		atLimit: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_dispatcher_limit_stops_total", Help: "Claims that a queue's limit kept from taking more: max_running, rate, or paused.",
		}, []string{"limit"}),
		unavailable: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outbox_dispatcher_kind_unavailable", Help: "1 while the jobs of a kind wait because what it needs is unavailable, else 0.",
		}, []string{"job_type", "queue"}),
		slots: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outbox_dispatcher_slots", Help: "Handlers of the queue that this process runs at once, at most.",
		}, []string{"queue"}),
		busy: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outbox_dispatcher_slots_busy", Help: "Handlers of the queue that run, each with a job or a batch of them.",
		}, []string{"queue"}),
	}
	for _, limit := range []string{"max_running", "rate", "paused"} {
		m.atLimit.WithLabelValues(limit)
	}
	return m
}

// forKind makes every series of a kind, so that rates start at zero. worker is a name that a restart does not change,
// or each would make new series.
func (m *metrics) forKind(kind, worker string) *kindMetrics {
	k := &kindMetrics{
		claimed:    m.claimed.WithLabelValues(kind, worker),
		succeeded:  m.completed.WithLabelValues(kind, "success"),
		failed:     m.completed.WithLabelValues(kind, "failed"),
		dead:       m.completed.WithLabelValues(kind, "dead"),
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

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
