package reaper

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the reaper's. job_queue_depth and its label are fixed by those who
// watch it (docs/operations.md); the others are outbox_reaper_. Every process
// samples the same queues: take the maximum of the gauges, not the sum.
type metrics struct {
	expired     prometheus.Counter
	dead        prometheus.Counter
	dropped     prometheus.Counter
	trimmed     map[string]prometheus.Counter // by table
	terminated  prometheus.Counter
	depth       *prometheus.GaugeVec
	oldestDue   prometheus.Gauge
	deadLetters prometheus.Gauge
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // nil registers nowhere, and still counts
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	m := &metrics{
		expired:    counter("outbox_reaper_leases_expired_total", "Jobs taken away from workers whose leases had lapsed."),
		dead:       counter("outbox_reaper_jobs_dead_total", "Jobs that ended dead because a lapsed lease was their last."),
		dropped:    counter("outbox_reaper_partitions_dropped_total", "Days of the history dropped whole."),
		terminated: counter("outbox_reaper_listeners_terminated_total", "Listeners terminated because they had stopped reading."),
		depth: f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "job_queue_depth",
			Help: "Jobs waiting to run, now or later, by kind; beyond the 100 deepest kinds as other.",
		}, []string{"job_type"}),
		oldestDue:   gauge("outbox_reaper_oldest_due_age_seconds", "Time since the oldest job that waits became due, 0 when none is due."),
		deadLetters: gauge("outbox_reaper_dead_letters", "Jobs that are failed or dead and wait for a person."),
		trimmed:     map[string]prometheus.Counter{},
	}
	trimmed := f.NewCounterVec(prometheus.CounterOpts{
		Name: "outbox_reaper_rows_trimmed_total",
		Help: "Rows deleted because they were beyond their retention, without the days dropped whole.",
	}, []string{"table"})
	for _, table := range []string{"history", "attempts", "idempotency_keys", "inbox"} {
		m.trimmed[table] = trimmed.WithLabelValues(table)
	}
	return m
}
