package schedule

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	fired   prometheus.Counter
	refused prometheus.Counter
	delay   prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // with nil, metrics count but are not registered
	return &metrics{
		fired: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_scheduler_ticks_total", Help: "Ticks of schedules that this process enqueued a job for.",
		}),
		refused: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_scheduler_refused_total",
			Help: "Times that a due schedule could not be fired and was set aside for up to 20 seconds.",
		}),
		delay: f.NewHistogram(prometheus.HistogramOpts{
			Name: "outbox_scheduler_tick_delay_seconds", Help: "Time from a tick until its job was enqueued.",
			Buckets:                     prometheus.ExponentialBuckets(0.0005, 4, 10), // 0.5 ms to 131 s
			NativeHistogramBucketFactor: 1.1, NativeHistogramMaxBucketNumber: 100,
			NativeHistogramMinResetDuration: time.Hour,
		}),
	}
}
