package memory

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/posthaste-dev/posthaste/outbox"
)

type metrics struct {
	ended            *prometheus.CounterVec
	rejected         *prometheus.CounterVec
	processing       *prometheus.HistogramVec
	waiting, running prometheus.Gauge
}

// kindMetrics are the metrics of one kind, looked up once.
type kindMetrics struct {
	ended      map[outbox.Status]prometheus.Counter
	rejected   prometheus.Counter
	processing prometheus.Observer
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // with nil, metrics count but are not registered
	return &metrics{
		ended: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_memory_jobs_total",
			Help: "Jobs in memory that ended: succeeded, failed, dead or cancelled (also by a stop).",
		}, []string{"job_type", "status"}),
		rejected: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_memory_rejected_total", Help: "Jobs in memory that were not taken because too many waited.",
		}, []string{"job_type"}),
		processing: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "outbox_memory_processing_seconds", Help: "Time a handler took for one attempt of a job in memory.",
			Buckets:                     prometheus.ExponentialBuckets(0.0005, 2.5, 14), // 0.5 ms to 75 s
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}, []string{"job_type"}),
		waiting: f.NewGauge(prometheus.GaugeOpts{
			Name: "outbox_memory_waiting", Help: "Jobs in memory that wait for a worker or for another attempt.",
		}),
		running: f.NewGauge(prometheus.GaugeOpts{
			Name: "outbox_memory_running", Help: "Jobs in memory that run.",
		}),
	}
}

// forKind creates every series of a kind, so that rates start at zero.
func (m *metrics) forKind(kind string) *kindMetrics {
	k := &kindMetrics{
		ended: map[outbox.Status]prometheus.Counter{}, rejected: m.rejected.WithLabelValues(kind),
		processing: m.processing.WithLabelValues(kind),
	}
	for _, status := range []outbox.Status{outbox.Succeeded, outbox.Failed, outbox.Dead, outbox.Cancelled} {
		k.ended[status] = m.ended.WithLabelValues(kind, string(status))
	}
	return k
}
