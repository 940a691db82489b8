package listener

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	received       prometheus.Counter
	coalesced      prometheus.Counter
	connected      prometheus.Gauge
	reconnects     prometheus.Counter
	canaryFailures prometheus.Counter
	canarySeconds  prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer, channel string) *metrics {
	f := promauto.With(reg) // with nil, metrics count but are not registered
	return &metrics{
		received: f.NewCounterVec(prometheus.CounterOpts{
			Name: "job_notification_received_total",
			Help: "Notifications received, canaries excluded.",
		}, []string{"channel"}).WithLabelValues(channel),
		coalesced: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_listener_wakeups_coalesced_total",
			Help: "Wake-ups that found one already waiting to be taken.",
		}),
		connected: f.NewGauge(prometheus.GaugeOpts{
			Name: "outbox_listener_connected",
			Help: "1 while the listener is connected and its last canary came back, else 0.",
		}),
		reconnects: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_listener_reconnects_total",
			Help: "Times that the listener listened again after its connection had ended.",
		}),
		canaryFailures: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_listener_canary_failures_total",
			Help: "Canaries that did not come back in time or could not be sent as configured.",
		}),
		canarySeconds: f.NewHistogram(prometheus.HistogramOpts{
			Name:                        "outbox_listener_canary_seconds",
			Help:                        "Time from sending a canary to receiving it.",
			Buckets:                     []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
			NativeHistogramBucketFactor: 1.1,
		}),
	}
}

func (m *metrics) setHearing(hearing bool) {
	if hearing {
		m.connected.Set(1)
	} else {
		m.connected.Set(0)
	}
}
