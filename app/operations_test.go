package app

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/posthaste-dev/posthaste/api"
	"github.com/posthaste-dev/posthaste/bridge"
	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/memory"
	"github.com/posthaste-dev/posthaste/reaper"
	"github.com/posthaste-dev/posthaste/relay"
	"github.com/posthaste-dev/posthaste/relay/nats"
	"github.com/posthaste-dev/posthaste/schedule"
)

// TestOperationsDocListsEveryMetric compares the table of docs/operate/operations.md with
// what the components register: names, labels and help texts.
func TestOperationsDocListsEveryMetric(t *testing.T) {
	doc, err := os.ReadFile("../docs/operate/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]string{}
	row := regexp.MustCompile("^\\| `([a-z_]+)` \\| [a-z]+ \\| ([a-z_, ]*) ?\\| (.+) \\|$")
	for line := range strings.Lines(string(doc)) {
		if m := row.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			documented[m[1]] = strings.TrimSpace(m[2]) + " | " + strings.ReplaceAll(m[3], "`", "")
		}
	}
	registered := registeredMetrics(t)
	if len(registered) < 15 {
		t.Fatalf("got %d registered metrics, want more: this test looks at the wrong place", len(registered))
	}
	if diff := cmp.Diff(registered, documented); diff != "" {
		t.Errorf("docs/operate/operations.md differs from the code (-code +doc):\n%s", diff)
	}
}

// registeredMetrics returns "labels | help" of each metric, by its name.
func registeredMetrics(t *testing.T) map[string]string {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none") // nothing connects
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	reg := descriptions{}
	reg.MustRegister(newBuildInfo(), newReadyMetric(nil))
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
	return reg
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
