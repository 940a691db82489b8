package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/posthaste-dev/posthaste/internal/promtest"
)

// rules returns the expressions of the alerts and of what is recorded, by name.
func rules(t *testing.T) (alerts, recorded map[string]string) {
	t.Helper()
	text, err := os.ReadFile("../prometheus/posthaste.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Groups []struct {
			Rules []struct{ Alert, Record, Expr string }
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	alerts, recorded = map[string]string{}, map[string]string{}
	for _, r := range file.Groups[0].Rules {
		if r.Alert != "" {
			alerts[r.Alert] = r.Expr
		} else {
			recorded[r.Record] = r.Expr
		}
	}
	return alerts, recorded
}

func TestTheFilesAreWhatTheProgramWrites(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("*.json")
	if err != nil || len(files) != len(boards()) {
		t.Errorf("%d files (%v), want %d", len(files), err, len(boards()))
	}
	for _, b := range boards() {
		want, err := b.json()
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(b.UID + ".json"); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s.json is not what the program writes (%v): make dashboards", b.UID, err)
		}
	}
}

// Grafana sets these variables; the viewer chooses some.
var chosen = strings.NewReplacer("$__rate_interval", "1m", "$queue", ".*", "$kind", ".*", "$sink", ".*")

func TestQueriesParseAndNameMetricsThatExist(t *testing.T) {
	t.Parallel()
	known := promtest.Documented(t)
	known["process_cpu_seconds_total"], known["process_resident_memory_bytes"] = []string{}, []string{}
	_, recorded := rules(t)
	for name, expr := range recorded {
		known[name] = []string{}
		if m := regexp.MustCompile(`by \(([a-z_, ]+)\)`).FindStringSubmatch(expr); m != nil {
			known[name] = strings.Split(m[1], ", ")
		}
	}
	var queries strings.Builder
	n := 0
	queries.WriteString("groups:\n  - name: queries\n    rules:\n")
	for _, b := range boards() {
		for _, p := range b.Panels {
			if (p.Type == "row") != (len(p.Targets) == 0) {
				t.Errorf("%s, %s: %d queries", b.Title, p.Title, len(p.Targets))
			}
			for _, q := range p.Targets {
				n++
				if err := promtest.Names(q.Expr, known); err != nil {
					t.Errorf("%s, %s: %s: %v", b.Title, p.Title, q.Expr, err)
				}
				for _, m := range legendLabel.FindAllStringSubmatch(q.LegendFormat, -1) {
					name, _, _ := strings.Cut(q.Expr, "{")
					if m[1] != "instance" && !slices.Contains(known[name], m[1]) && !grouping(q.Expr, m[1]) {
						t.Errorf("%s, %s: its legend has the label %s, and %s has not", b.Title, p.Title, m[1], q.Expr)
					}
				}
				fmt.Fprintf(&queries, "      - {record: 'query:%d', expr: '%s'}\n", n, chosen.Replace(q.Expr))
			}
		}
	}
	if n < 60 || strings.Contains(queries.String(), "$") {
		t.Errorf("%d queries; are there variables that this test does not know?\n%s", n, queries.String())
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "queries.yml"), []byte(queries.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	promtest.Check(t, folder, nil, "check", "rules", "queries.yml")
}

var legendLabel = regexp.MustCompile(`\{\{([^}]*)\}\}`)

// grouping reports whether an expression groups by a label.
func grouping(expr, label string) bool {
	m := regexp.MustCompile(`by \(([a-z_, ]+)\)`).FindStringSubmatch(expr)
	return m != nil && slices.Contains(strings.Split(m[1], ", "), label)
}

// A threshold is where its alert fires.
func TestThresholdsAreThoseOfTheAlerts(t *testing.T) {
	t.Parallel()
	alerts, _ := rules(t)
	shown := 0
	for _, b := range boards() {
		for _, p := range b.Panels {
			if p.alert == "" {
				continue
			}
			shown++
			steps := p.FieldConfig.Defaults.Thresholds.Steps
			value, fires := *steps[len(steps)-1].Value, fmt.Sprintf(" > %v", *steps[1].Value)
			if steps[0].Color == "red" {
				fires = fmt.Sprintf(" < %v", value)
			}
			expr, ok := alerts[p.alert]
			if value == 1 && steps[0].Color == "red" {
				expr = strings.ReplaceAll(expr, " == 0", fires)
			}
			if !ok || !regexp.MustCompile(regexp.QuoteMeta(fires)+`( |$)`).MatchString(expr) {
				t.Errorf("%s, %s: its threshold is%s; %s fires at %q", b.Title, p.Title, fires, p.alert, expr)
			}
		}
	}
	if shown < 15 {
		t.Errorf("%d panels show a threshold: this looks at the wrong place", shown)
	}
}

// Panels lie in a grid of 24 columns without overlapping, and ids are unique.
func TestPanelsHaveTheirPlaces(t *testing.T) {
	t.Parallel()
	uids := map[string]bool{}
	for _, b := range boards() {
		if uids[b.UID] || len(b.UID) > 40 {
			t.Errorf("the uid %s is taken, or too long", b.UID)
		}
		uids[b.UID] = true
		taken, ids := map[[2]int]string{}, map[int]bool{}
		for _, p := range b.Panels {
			if ids[p.ID] || p.ID < 1 {
				t.Errorf("%s, %s: the id %d", b.Title, p.Title, p.ID)
			}
			ids[p.ID] = true
			for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
				for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
					if other, is := taken[[2]int{x, y}]; is || x >= 24 {
						t.Fatalf("%s: %s lies at %d, %d, on %q", b.Title, p.Title, x, y, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
		}
	}
}
