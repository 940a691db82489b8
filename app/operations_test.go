//go:build !race

// For the detector, package api would be compiled for this file alone, which starts no goroutine: make test runs it
// without.

package app

import (
	"flag"
	"fmt"
	"maps"
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

var updateReference = flag.Bool("update-reference", false, "write docs/reference/metrics.md")

// docs/reference/metrics.md is generated from what the components register: names, types, labels and help texts.
func TestReferenceOfMetricsIsWhatTheCodeRegisters(t *testing.T) {
	const page = "../docs/reference/metrics.md"
	registered, series := descriptions{}, newEverySeries()
	registerMetrics(t, registered)
	registerMetrics(t, series)
	types := exposedTypes(series.exposed())
	if len(registered) < 15 {
		t.Fatalf("got %d registered metrics, want more: this test looks at the wrong place", len(registered))
	}
	var want strings.Builder
	want.WriteString(`# Metrics

For people who write dashboards and alerts: every metric of Posthaste, generated from the program. A process exports
those of its roles; ` + "`outbox_memory_…`" + ` is exported by programs with package memory.
[Operations](../operate/operations.md#metrics) explains labels, sampled gauges and scaling. ` + "`promtool check metrics`" + ` has
nothing against them:

<!-- not run: app/run_test.go gives promtool the same lines -->
` + "```sh" + `
curl -s http://127.0.0.1:9090/metrics | promtool check metrics
` + "```" + `

| metric | type | labels | meaning |
| --- | --- | --- | --- |
`)
	for _, name := range slices.Sorted(maps.Keys(registered)) {
		m := registered[name]
		fmt.Fprintf(&want, "| `%s` | %s | %s| %s |\n", name, types[name], strings.TrimLeft(m.labels+" ", " "), strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(m.help))
	}
	if *updateReference {
		if err := os.WriteFile(page, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(want.String(), "\n"), strings.Split(string(got), "\n")); diff != "" {
		t.Errorf("docs/reference/metrics.md differs from the code, make docs-reference writes it (-code +doc):\n%s", diff)
	}
}

// promtool has nothing against any metric.
func TestPromlintOfEveryMetric(t *testing.T) {
	registered, series := descriptions{}, newEverySeries()
	registerMetrics(t, registered)
	registerMetrics(t, series)
	text := series.exposed()
	for name := range registered {
		if !regexp.MustCompile(`(?m)^` + name + `(_bucket)?[{ ]`).MatchString(text) {
			t.Errorf("promtool is not given %s", name)
		}
	}
	promtest.Check(t, "", []byte(text), "check", "metrics")
}

// exposedTypes returns the type of each metric that Prometheus would scrape.
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
	reg.MustRegister(newBuildInfo(), newReadyMetric(&readiness{at: time.Now()}), newPoolMetrics(pool, "shared"))
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
	for _, m := range described {
		values := strings.Fields(m.labels) // the values are the names, of which there may be none
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

type metric struct{ labels, help string }

// descriptions is a registerer that keeps what metrics say of themselves, also of
// those that have no series yet.
type descriptions map[string]metric

var descPattern = regexp.MustCompile(`fqName: "([^"]*)", help: "((?:[^"\\]|\\.)*)", (?:unit: "[^"]*", )?constLabels: \{(?:(\w+)="[^"]*")?\}, variableLabels: \{([^}]*)\}`)

func (d descriptions) Register(c prometheus.Collector) error {
	ch := make(chan *prometheus.Desc, 100)
	c.Describe(ch)
	close(ch)
	for desc := range ch {
		if m := descPattern.FindStringSubmatch(desc.String()); m != nil {
			labels := strings.Split(m[4], ",")
			if m[3] != "" {
				labels = []string{m[3]} // only pools have one, and no others
			}
			slices.Sort(labels)
			d[m[1]] = metric{strings.Join(labels, ", "), strings.ReplaceAll(m[2], `\"`, `"`)}
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
