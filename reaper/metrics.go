package reaper

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/posthaste-dev/posthaste/internal/engine"
	"github.com/posthaste-dev/posthaste/outbox"
)

// metrics are the reaper's. Monitoring relies on the name job_queue_depth and its label (docs/operate/operations.md).
// The others begin with outbox_reaper_, or with outbox_queue_ for properties of a queue. Every process shows the same
// sample: aggregate the gauges by maximum, not by sum.
type metrics struct {
	expired     prometheus.Counter
	dead        prometheus.Counter
	late        prometheus.Counter
	dropped     prometheus.Counter
	trimmed     map[string]prometheus.Counter // by table
	jobsTrimmed map[string]prometheus.Counter // by outcome
	terminated  prometheus.Counter
	depth       *prometheus.GaugeVec
	oldestDue   prometheus.Gauge
	deadLetters prometheus.Gauge
	promoted    prometheus.Counter

	blocked, oldestBlocked prometheus.Gauge

	queueDue, queueUnhandled, queueOldest, queuePaused, queueLimit  *prometheus.GaugeVec
	unhandled                                                       *prometheus.GaugeVec // by kind
	horizonSeconds, horizonTransactions, daysAhead, schema, sampled prometheus.Gauge

	eventDaysHeld prometheus.Gauge
	eventsLost    *prometheus.CounterVec // by sink
	sinkOwned     *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // with nil, metrics count but are not registered
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
	}
	m := &metrics{
		expired: counter("outbox_reaper_leases_expired_total",
			"Jobs taken away from workers whose leases had lapsed."),
		dead: counter("outbox_reaper_jobs_dead_total",
			"Jobs that ended dead because a lapsed lease was their last."),
		late: counter("outbox_reaper_jobs_expired_total",
			"Jobs closed as expired because their deadlines had come."),
		dropped: counter("outbox_reaper_partitions_dropped_total",
			"Days of the history and of the events dropped whole."),
		terminated: counter("outbox_reaper_listeners_terminated_total",
			"Listeners terminated because they had stopped reading."),
		depth: gauges("job_queue_depth",
			"Jobs waiting to run, now or later, by kind; beyond the 100 deepest kinds as other.", "job_type"),
		oldestDue: gauge("outbox_reaper_oldest_due_age_seconds",
			"Time since the oldest job that waits became due, 0 when none is due."),
		deadLetters: gauge("outbox_reaper_dead_letters", "Jobs that are failed or dead and wait for a person."),
		trimmed:     map[string]prometheus.Counter{},
		jobsTrimmed: map[string]prometheus.Counter{},
		blocked:     gauge("outbox_reaper_jobs_blocked", "Jobs that are due and wait for their key."),
		oldestBlocked: gauge("outbox_reaper_oldest_blocked_age_seconds",
			"Time since the blocked job that was due first was due, 0 when none is blocked."),
		eventDaysHeld: gauge("outbox_reaper_event_partitions_held",
			"Days of events that are kept beyond their retention because a sink has not read them."),
		eventsLost: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_reaper_events_lost_total",
			Help: "Events dropped with their day that the sink had not read.",
		}, []string{"sink"}),
		sinkOwned: gauges("outbox_reaper_sink_owned", "1 while a process publishes to the sink, else 0.", "sink"),
		horizonSeconds: gauge("outbox_reaper_horizon_age_seconds",
			"Age of the oldest snapshot or prepared transaction, beyond which vacuum removes nothing, as far as the role may see."),
		horizonTransactions: gauge("outbox_reaper_horizon_age_transactions",
			"The same in transactions, replication slots included."),
		schema: gauge("outbox_schema_version", "Number of the latest migration of the database."),
		daysAhead: gauge("outbox_history_partitions_ahead",
			"Days after today for which the history and the events have partitions, up to the first that lacks one."),
		sampled: gauge("outbox_reaper_sample_timestamp_seconds",
			"When the gauges of queues, kinds and vacuum were sampled, by one process for all."),
		promoted: counter("outbox_reaper_keys_moved_on_total",
			"Blocked jobs that the reaper promoted because nobody else had; a process that died leaves some."),
	}
	m.gaugeQueues(gauges)
	m.countTrimmed(f)
	return m
}

// gaugeQueues makes the gauges of single queues, and of the kinds that no dispatcher of their queue handles.
func (m *metrics) gaugeQueues(gauges func(name, help string, labels ...string) *prometheus.GaugeVec) {
	m.queueDue = gauges("outbox_queue_jobs_due",
		"Jobs that are due and wait for a worker, 0 while the queue is paused; beyond 100 queues as other.",
		"queue")
	m.queueUnhandled = gauges("outbox_queue_jobs_unhandled",
		"Due jobs of the queue for whose kind none of its dispatchers has a handler, 0 while no dispatcher works the queue.",
		"queue")
	m.queueOldest = gauges("outbox_queue_oldest_due_age_seconds",
		"Time since the queue's oldest due job became due, unhandled jobs aside; 0 when none is due or the queue is paused.",
		"queue")
	m.queuePaused = gauges("outbox_queue_paused", "1 while the queue is paused, else 0.", "queue")
	m.queueLimit = gauges("outbox_queue_limit",
		"Jobs of the queue that may run at once (max_running) or start per second (rate), if that is limited.",
		"queue", "limit")
	m.unhandled = gauges("outbox_unhandled_jobs",
		"Due jobs of the kind for which no dispatcher of their queue, which is not paused, has a handler.",
		"job_type")
}

// countTrimmed makes the counters of rows removed beyond their retention.
func (m *metrics) countTrimmed(f promauto.Factory) {
	trimmed := f.NewCounterVec(prometheus.CounterOpts{
		Name: "outbox_reaper_rows_trimmed_total",
		Help: "Rows deleted because they were beyond their retention, without the days dropped whole.",
	}, []string{"table"})
	for _, table := range []string{
		"history", "dead_letters", "attempts", "idempotency_keys", "inbox", "workers",
		"lease_extensions", "audit", "progress", "events", "measures", "operations",
	} {
		m.trimmed[table] = trimmed.WithLabelValues(table)
	}
	jobs := f.NewCounterVec(prometheus.CounterOpts{
		Name: "outbox_reaper_jobs_trimmed_total",
		Help: "Jobs removed because they were beyond their retention, row by row or with their day; failed and dead are dead letters that nobody did anything about.",
	}, []string{"outcome"})
	for _, status := range engine.Statuses[outbox.Status]() {
		if status.Closed() || isDeadLetter(status) {
			m.jobsTrimmed[string(status)] = jobs.WithLabelValues(string(status))
		}
	}
}
