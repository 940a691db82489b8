package app

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolMetrics publishes a pool's statistics, labelled with the pool's name.
type poolMetrics struct {
	pool *pgxpool.Pool
	all  []poolMetric
}

type poolMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	get  func(*pgxpool.Stat) float64
}

func newPoolMetrics(pool *pgxpool.Pool, name string) *poolMetrics {
	m := &poolMetrics{pool: pool}
	add := func(metric string, kind prometheus.ValueType, get func(*pgxpool.Stat) float64, help string) {
		desc := prometheus.NewDesc("outbox_pool_"+metric, help, nil, prometheus.Labels{"pool": name})
		m.all = append(m.all, poolMetric{desc, kind, get})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	type stat = *pgxpool.Stat
	add("acquires_total", counter, func(s stat) float64 { return float64(s.AcquireCount()) },
		"Connections that the pool has given out.")
	add("acquire_seconds_total", counter, func(s stat) float64 { return s.AcquireDuration().Seconds() },
		"Time that requests took until the pool gave out a connection.")
	add("cancelled_acquires_total", counter, func(s stat) float64 { return float64(s.CanceledAcquireCount()) },
		"Requests for a connection that were cancelled before the pool gave one out.")
	add("empty_acquires_total", counter, func(s stat) float64 { return float64(s.EmptyAcquireCount()) },
		"Connections that the pool gave out after a wait, because none was idle.")
	add("empty_acquire_wait_seconds_total", counter, func(s stat) float64 { return s.EmptyAcquireWaitTime().Seconds() },
		"Time that requests waited for a connection because none was idle.")
	add("new_conns_total", counter, func(s stat) float64 { return float64(s.NewConnsCount()) },
		"Connections that the pool has opened.")
	add("max_lifetime_closes_total", counter, func(s stat) float64 { return float64(s.MaxLifetimeDestroyCount()) },
		"Connections that the pool has closed because they were older than its MaxConnLifetime.")
	add("max_idle_closes_total", counter, func(s stat) float64 { return float64(s.MaxIdleDestroyCount()) },
		"Connections that the pool has closed because they were idle for longer than its MaxConnIdleTime.")
	add("acquired_conns", gauge, func(s stat) float64 { return float64(s.AcquiredConns()) },
		"Connections in use.")
	add("constructing_conns", gauge, func(s stat) float64 { return float64(s.ConstructingConns()) },
		"Connections that are being opened.")
	add("idle_conns", gauge, func(s stat) float64 { return float64(s.IdleConns()) },
		"Connections that are open and not in use.")
	add("conns", gauge, func(s stat) float64 { return float64(s.TotalConns()) },
		"Connections of the pool: in use, idle, and being opened.")
	add("max_conns", gauge, func(s stat) float64 { return float64(s.MaxConns()) },
		"Connections that the pool may have.")
	return m
}

// Describe sends the descriptions of all metrics.
func (m *poolMetrics) Describe(descs chan<- *prometheus.Desc) {
	for _, metric := range m.all {
		descs <- metric.desc
	}
}

// Collect sends the values of all metrics, taken at one moment.
func (m *poolMetrics) Collect(metrics chan<- prometheus.Metric) {
	stat := m.pool.Stat()
	for _, metric := range m.all {
		metrics <- prometheus.MustNewConstMetric(metric.desc, metric.kind, metric.get(stat))
	}
}
