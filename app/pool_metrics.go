package app

import (
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// poolMetrics publishes a pool's statistics, labelled with the pool's name. Names and help texts are those of
// github.com/IBM/pgxpoolprometheus: a registry refuses two metrics of one name with different help texts, and the
// program may register its own pools.
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
		desc := prometheus.NewDesc("pgxpool_"+metric, help, nil, prometheus.Labels{"pool": name})
		m.all = append(m.all, poolMetric{desc, kind, get})
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	type stat = *pgxpool.Stat
	add("acquire_count", counter, func(s stat) float64 { return float64(s.AcquireCount()) },
		"Cumulative count of successful acquires from the pool.")
	add("acquire_duration_ns", counter, func(s stat) float64 { return float64(s.AcquireDuration()) },
		"Total duration of all successful acquires from the pool in nanoseconds.")
	add("canceled_acquire_count", counter, func(s stat) float64 { return float64(s.CanceledAcquireCount()) },
		"Cumulative count of acquires from the pool that were canceled by a context.")
	add("empty_acquire", counter, func(s stat) float64 { return float64(s.EmptyAcquireCount()) },
		"Cumulative count of successful acquires from the pool that waited for a resource to be released"+
			" or constructed because the pool was empty.")
	add("empty_acquire_wait_time_ns", counter, func(s stat) float64 { return float64(s.EmptyAcquireWaitTime()) },
		"Cumulative time in nanoseconds waited for successful acquires from the pool for a resource to "+
			"be released or constructed because the pool was empty.")
	add("new_conns_count", counter, func(s stat) float64 { return float64(s.NewConnsCount()) },
		"Cumulative count of new connections opened.")
	add("max_lifetime_destroy_count", counter, func(s stat) float64 { return float64(s.MaxLifetimeDestroyCount()) },
		"Cumulative count of connections destroyed because they exceeded MaxConnLifetime.")
	add("max_idle_destroy_count", counter, func(s stat) float64 { return float64(s.MaxIdleDestroyCount()) },
		"Cumulative count of connections destroyed because they exceeded MaxConnIdleTime.")
	add("acquired_conns", gauge, func(s stat) float64 { return float64(s.AcquiredConns()) },
		"Number of currently acquired connections in the pool.")
	add("constructing_conns", gauge, func(s stat) float64 { return float64(s.ConstructingConns()) },
		"Number of conns with construction in progress in the pool.")
	add("idle_conns", gauge, func(s stat) float64 { return float64(s.IdleConns()) },
		"Number of currently idle conns in the pool.")
	add("total_conns", gauge, func(s stat) float64 { return float64(s.TotalConns()) },
		"Total number of resources currently in the pool. The value is the sum of ConstructingConns, "+
			"AcquiredConns, and IdleConns.")
	add("max_conns", gauge, func(s stat) float64 { return float64(s.MaxConns()) },
		"Maximum size of the pool.")
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
