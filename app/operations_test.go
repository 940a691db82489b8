package app

import (
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/internal/promtest"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/memory"
	"github.com/posthaste-dev/posthaste/reaper"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/schedule"
)

// The table of docs/operate/operations.md lists the metrics that the components register, with their types, labels and
// help texts.
func TestMetricsOfTheOperationsDocAreThoseOfTheCode(t *testing.T) {
	documented, types := documentedMetrics(t)
	described, series := descriptions{}, newEverySeries()
	registerMetrics(t, described)
	registerMetrics(t, series)
	if len(described) < 15 {
		t.Fatalf("got %d registered metrics, want more: this test looks at the wrong place", len(described))
	}
	if diff := cmp.Diff(map[string]string(described), documented); diff != "" {
		t.Errorf("docs/operate/operations.md differs from the code (-code +doc):\n%s", diff)
	}
	if diff := cmp.Diff(exposedTypes(series.exposed()), types); diff != "" {
		t.Errorf("docs/operate/operations.md has other types than the code (-code +doc):\n%s", diff)
	}
}

// promtool has nothing against any metric of the table.
func TestPromlintOfEveryMetric(t *testing.T) {
	series := newEverySeries()
	registerMetrics(t, series)
	text := series.exposed()
	_, types := documentedMetrics(t)
	for name := range types {
		if !regexp.MustCompile(`(?m)^` + name + `(_bucket)?[{ ]`).MatchString(text) {
			t.Errorf("promtool is not given %s", name)
		}
	}
	promtest.Check(t, "", []byte(text), "check", "metrics")
}

// documentedMetrics returns "labels | help" and the type of each metric of the table, by its name.
func documentedMetrics(t *testing.T) (documented, types map[string]string) {
	t.Helper()
	doc, err := os.ReadFile("../docs/operate/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented, types = map[string]string{}, map[string]string{}
	row := regexp.MustCompile("^\\| `([a-z_]+)` \\| ([a-z]+) \\| ([a-z_, ]*) ?\\| (.+) \\|$")
	for line := range strings.Lines(string(doc)) {
		if m := row.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			documented[m[1]] = strings.TrimSpace(m[3]) + " | " + strings.ReplaceAll(m[4], "`", "")
			types[m[1]] = m[2]
		}
	}
	return documented, types
}

func exposedTypes(text string) map[string]string {
	types := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(text, -1) {
		types[m[1]] = m[2]
	}
	return types
}

// registerMetrics makes one component of each sort, which registers its metrics.
func registerMetrics(t *testing.T, reg prometheus.Registerer) {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none") // nothing connects
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	reg.MustRegister(newBuildInfo(), newReadyMetric(&readiness{at: time.Now()}))
	if _, err := dispatcher.New(pool, &dispatcher.Mux{}, dispatcher.Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := reaper.New(pool, reaper.Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := schedule.New(pool, schedule.Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := memory.New(&memory.Mux{}, memory.Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.New(api.Config{Pool: pool, AnonymousLoopback: true, Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := listener.New("postgres://nobody@127.0.0.1:1/none", dispatcher.Channel, listener.NewSignal(), listener.Config{Registerer: reg}); err != nil {
		t.Fatal(err)
	}
	if _, err := relay.New(pool, relay.Config{Registerer: reg, Sinks: []relay.SinkConfig{
		{Name: "s", Sink: &nats.Sink{}, Routes: []relay.Route{{Topics: []string{"*"}}}},
	}}); err != nil {
		t.Fatal(err)
	}
	if _, err := bridge.New(pool, bridge.Config{Registerer: reg, Bridges: []bridge.BridgeConfig{{Name: "b", Source: &nats.Source{}, Kind: "k"}}}); err != nil {
		t.Fatal(err)
	}
}

// everySeries is a registry in which each metric has a series, also one with labels that nothing has counted yet.
type everySeries struct{ *prometheus.Registry }

func newEverySeries() everySeries { return everySeries{prometheus.NewRegistry()} }

func (s everySeries) Register(c prometheus.Collector) error {
	described := descriptions{}
	_ = described.Register(c)
	for _, about := range described {
		labels, _, _ := strings.Cut(about, " | ")
		values := strings.Fields(labels) // the values are the names, of which there may be none
		switch c := c.(type) {
		case *prometheus.CounterVec:
			c.WithLabelValues(values...)
		case *prometheus.GaugeVec:
			c.WithLabelValues(values...)
		case *prometheus.HistogramVec:
			c.WithLabelValues(values...)
		}
	}
	return s.Registry.Register(c)
}

func (s everySeries) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := s.Register(c); err != nil {
			panic(err)
		}
	}
}

// exposed returns what Prometheus would scrape.
func (s everySeries) exposed() string {
	w := httptest.NewRecorder()
	promhttp.HandlerFor(s.Registry, promhttp.HandlerOpts{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	return w.Body.String()
}

// descriptions is a registerer that keeps what metrics say of themselves, also of
// those that have no series yet.
type descriptions map[string]string

var descPattern = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{\}, variableLabels: \{([^}]*)\}`)

func (d descriptions) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 100)
	c.Describe(ch)
	close(ch)
	for desc := range ch {
		if m := descPattern.FindStringSubmatch(desc.String()); m != nil {
			labels := strings.Split(m[3], ",")
			slices.Sort(labels)
			d[m[1]] = strings.Join(labels, ", ") + " | " + m[2]
		}
	}
	return nil
}

func (d descriptions) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		_ = d.Register(c)
	}
}

func (d descriptions) Unregister(prometheus.Collector) bool { return true }
