package bridge

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct{ received, stored, undecodable *prometheus.CounterVec }

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // nil registers nowhere, and still counts
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"bridge"})
	}
	return &metrics{
		received:    counter("outbox_bridge_received_total", "Messages that the bridge has fetched, repeats included."),
		stored:      counter("outbox_bridge_stored_total", "Messages that are jobs or dead letters, repeats included."),
		undecodable: counter("outbox_bridge_undecodable_total", "Those of which no job could be made: each is a dead letter of the kind inbox:undecodable."),
	}
}

// bridgeMetrics are those of one bridge.
type bridgeMetrics struct{ received, stored, undecodable prometheus.Counter }

func (m *metrics) of(bridge string) bridgeMetrics {
	return bridgeMetrics{m.received.WithLabelValues(bridge), m.stored.WithLabelValues(bridge), m.undecodable.WithLabelValues(bridge)}
}
