package app

import "github.com/prometheus/client_golang/prometheus"

// readyMetric publishes the result of the latest look at the database. It makes no look itself, so a scrape runs no
// query.
type readyMetric struct {
	looks *readiness
	desc  *prometheus.Desc
}

func newReadyMetric(looks *readiness) readyMetric {
	return readyMetric{looks, prometheus.NewDesc("outbox_ready",
		"1 if the database accepts writes, and if its schema is one that the build works with, as of the last half minute, else 0.", []string{"component"}, nil)}
}

// Describe sends the description.
func (m readyMetric) Describe(descs chan<- *prometheus.Desc) { descs <- m.desc }

// Collect sends both values, and none before the first check.
func (m readyMetric) Collect(metrics chan<- prometheus.Metric) {
	m.looks.mu.Lock()
	defer m.looks.mu.Unlock()
	if m.looks.at.IsZero() {
		return
	}
	for component, ready := range map[string]bool{
		"database": m.looks.database.State == databaseUp,
		"schema":   m.looks.schema.usable(),
	} {
		value := 0.0
		if ready {
			value = 1
		}
		metrics <- prometheus.MustNewConstMetric(m.desc, prometheus.GaugeValue, value, component)
	}
}
