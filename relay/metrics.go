package relay

import (
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are those of all sinks. A process that does not own a sink does not know how far it has come: there owned is
// 0, and the other gauges are absent. So an outage of the database, in which nobody owns a sink, does not look as if it
// had no lag. Aggregate over processes by maximum, not by sum.
type metrics struct {
	published, failures, refused, dropped, rewinds *prometheus.CounterVec
	replayed, duplicates, dataLosses               *prometheus.CounterVec
	owned, lagEvents, lagSeconds, away, holes      *prometheus.GaugeVec
	heldMessages, heldKeys, waiting                *prometheus.GaugeVec
	publishSeconds, batchSize                      *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg) // with nil, metrics count but are not registered
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, append([]string{"sink"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{"sink"})
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"sink"})
	}
	return &metrics{
		published: counter("outbox_relay_published_total",
			"Messages that the sink has accepted; after a crash some count twice."),
		failures: counter("outbox_relay_failures_total",
			"Batches of which the sink has not accepted all, by the code of the first message that it did not accept.",
			"code"),
		refused: counter("outbox_relay_refused_total",
			"Messages that the sink has refused, by code; after a crash some count twice. Each becomes a job, except those whose route drops them.", "code"),
		dropped: counter("outbox_relay_dropped_total",
			"Messages that the sink has refused and whose route has onRefused: drop; after a crash some count twice."),
		rewinds: counter("outbox_relay_rewinds_total",
			"Times that the sink began again with earlier events, because positions came from another timeline."),
		replayed: counter("outbox_relay_replayed_total",
			"Messages of replays that the sink has accepted; after a crash some count twice."),
		duplicates: counter("outbox_relay_duplicates_total",
			"Messages that the broker has dropped because it remembered their ids, as far as it reports them."),
		dataLosses: counter("outbox_relay_data_losses_total",
			"Times that the broker has reported the loss of messages that it had acknowledged."),
		owned: gauge("outbox_relay_owned", "1 in the process that publishes to the sink."),
		lagEvents: gauge("outbox_relay_lag_events",
			"Positions between the sink's and the end of the log; some have no event."),
		lagSeconds: gauge("outbox_relay_lag_seconds",
			"Age of the oldest event that is not published, 0 if there is none."),
		away: gauge("outbox_relay_away_seconds",
			"For how long the broker, or a destination, has accepted nothing, 0 if it accepts messages."),
		holes: gauge("outbox_relay_holes",
			"Positions that the sink has passed: of running transactions, or of messages that wait for a destination."),
		waiting: gauge("outbox_relay_waiting_messages",
			"Messages that wait for a destination which accepts nothing; with 50,000, or 256 MiB of them, the sink stands still."),
		heldMessages: gauge("outbox_relay_held_messages",
			"Open jobs of the sink, dead letters too: messages that it has refused, and those behind them of the same key."),
		heldKeys: gauge("outbox_relay_held_keys", "Keys of which later messages wait behind such jobs."),
		publishSeconds: histogram("outbox_relay_publish_seconds", "How long the sink took for a batch.",
			prometheus.ExponentialBuckets(0.0005, 2, 15)),
		batchSize: histogram("outbox_relay_batch_size", "Messages in a batch.", prometheus.ExponentialBuckets(1, 4, 6)),
	}
}

// sinkMetrics are those of one sink.
type sinkMetrics struct {
	published, dropped, rewinds        prometheus.Counter
	failures, refused                  *prometheus.CounterVec
	replayed, duplicates, dataLosses   prometheus.Counter
	owned                              prometheus.Gauge
	lagEvents, lagSeconds, away, holes ownersGauge
	heldMessages, heldKeys, waiting    ownersGauge
	publishSeconds, batchSize          prometheus.Observer
}

// ownersGauge is a gauge that exists only in the process that owns the sink.
type ownersGauge struct {
	of   *prometheus.GaugeVec
	sink string
}

func (g ownersGauge) Set(value float64) { g.of.WithLabelValues(g.sink).Set(value) }

func (m *metrics) of(sink string) *sinkMetrics {
	return &sinkMetrics{
		published: m.published.WithLabelValues(sink), dropped: m.dropped.WithLabelValues(sink),
		rewinds:  m.rewinds.WithLabelValues(sink),
		failures: m.failures.MustCurryWith(prometheus.Labels{"sink": sink}),
		refused:  m.refused.MustCurryWith(prometheus.Labels{"sink": sink}),
		replayed: m.replayed.WithLabelValues(sink), duplicates: m.duplicates.WithLabelValues(sink),
		dataLosses:   m.dataLosses.WithLabelValues(sink),
		owned:        m.owned.WithLabelValues(sink),
		heldMessages: ownersGauge{m.heldMessages, sink}, heldKeys: ownersGauge{m.heldKeys, sink},
		waiting:   ownersGauge{m.waiting, sink},
		lagEvents: ownersGauge{m.lagEvents, sink}, lagSeconds: ownersGauge{m.lagSeconds, sink},
		away: ownersGauge{m.away, sink}, holes: ownersGauge{m.holes, sink},
		publishSeconds: m.publishSeconds.WithLabelValues(sink), batchSize: m.batchSize.WithLabelValues(sink),
	}
}

func (m *sinkMetrics) batch(messages int, took time.Duration) {
	if messages > 0 {
		m.batchSize.Observe(float64(messages))
		m.publishSeconds.Observe(took.Seconds())
	}
}

func (m *sinkMetrics) accepted(messages int) { m.published.Add(float64(messages)) }

func (m *sinkMetrics) refuse(code string) { m.refused.WithLabelValues(code).Inc() }

func (m *sinkMetrics) failed(code string) { m.failures.WithLabelValues(code).Inc() }

// stored records what the database knew when the cursor was stored.
func (m *sinkMetrics) stored(s *step) {
	m.lagEvents.Set(float64(max(0, s.row.Last-s.cursor.top)))
	m.holes.Set(float64(s.cursor.positions()))
	if s.row.Last <= s.cursor.top && len(s.cursor.holes) == 0 {
		m.lagSeconds.Set(0)
	}
	stood := 0.0
	if s.away != nil {
		stood = s.sent.Sub(s.away.since).Seconds()
	}
	m.away.Set(stood)
}

// waits records for how long the oldest unpublished event has waited; NULL means that there is none.
func (m *sinkMetrics) waits(interval pgtype.Interval) {
	m.lagSeconds.Set(max(0, float64(interval.Days)*86400+float64(interval.Microseconds)/1e6))
}

func (m *sinkMetrics) held(h *held) {
	m.heldMessages.Set(float64(len(h.jobs)))
	m.heldKeys.Set(float64(len(h.keys)))
}

// forget ends what a process knows that no longer owns the sink.
func (m *sinkMetrics) forget() {
	m.owned.Set(0)
	for _, g := range []ownersGauge{m.lagEvents, m.lagSeconds, m.away, m.holes, m.heldMessages, m.heldKeys, m.waiting} {
		g.of.DeleteLabelValues(g.sink)
	}
}
