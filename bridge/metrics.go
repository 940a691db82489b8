package bridge

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of all bridges. A bridge's gauges are 0 in a process that does not fetch, except stalled: aggregate
// over processes by maximum, not by sum.
type metrics struct {
	received, stored, undecodable *prometheus.CounterVec
	owned, lag, stalled           *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // with nil, metrics count but are not registered
	labels := []string{"bridge"}
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	return &metrics{
		received: counter("outbox_bridge_received_total", "Messages that the bridge has fetched, repeats included."),
		stored:   counter("outbox_bridge_stored_total", "Messages that are jobs or dead letters, repeats included."),
		undecodable: counter("outbox_bridge_undecodable_total",
			"Messages of which no job could be made: each is a dead letter of the kind inbox:undecodable."),
		owned: gauge("outbox_bridge_owned", "1 in the process that fetches the bridge's messages."),
		lag: gauge("outbox_bridge_lag_messages",
			"Messages behind those that the bridge has fetched, when the broker said so last."),
		stalled: gauge("outbox_bridge_stalled_seconds",
			"For how long broker, database or a full queue have kept the bridge from storing messages, 0 if nothing does."),
	}
}

// bridgeMetrics are those of one bridge.
type bridgeMetrics struct {
	received, stored, undecodable prometheus.Counter
	owned, lag, stalled           prometheus.Gauge
}

func (m *metrics) of(bridge string) bridgeMetrics {
	return bridgeMetrics{
		m.received.WithLabelValues(bridge), m.stored.WithLabelValues(bridge), m.undecodable.WithLabelValues(bridge),
		m.owned.WithLabelValues(bridge), m.lag.WithLabelValues(bridge), m.stalled.WithLabelValues(bridge),
	}
}

// forget resets the gauges in a process that no longer fetches.
func (m *bridgeMetrics) forget() {
	m.owned.Set(0)
	m.lag.Set(0)
}
