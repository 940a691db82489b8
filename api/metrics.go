package api

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

type metrics struct {
	requests *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	streams  prometheus.Gauge
	slow     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		requests: f.NewCounterVec(prometheus.CounterOpts{
			Name: "outbox_api_requests_total",
			Help: "Answered requests by route and status.",
		}, []string{"route", "status"}),
		seconds: f.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "outbox_api_request_seconds",
			Help:    "Time from the request's header to the end of its answer, by route.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}, []string{"route"}),
		streams: f.NewGauge(prometheus.GaugeOpts{
			Name: "outbox_api_streams",
			Help: "Open streams of changes.",
		}),
		slow: f.NewCounter(prometheus.CounterOpts{
			Name: "outbox_api_streams_dropped_total",
			Help: "Streams that were ended because their client read too slowly.",
		}),
	}
}

// answered counts a request, except for paths without a route.
func (m *metrics) answered(route string, status int, took time.Duration) {
	if route == "" {
		route = "none"
	}
	if status == 0 {
		status = 200
	}
	m.requests.WithLabelValues(route, strconv.Itoa(status)).Inc()
	m.seconds.WithLabelValues(route).Observe(took.Seconds())
}
