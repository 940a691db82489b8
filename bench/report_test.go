package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func roundsOf(measurement, figure string, values map[string][]float64) (records []record) {
	for system, list := range values {
		for i, value := range list {
			records = append(records, record{Round: i + 1, Measurement: measurement, System: system, Figures: map[string]float64{figure: value}})
		}
	}
	return records
}

func TestTheReportTellsMediansSpreadBarsAndLosses(t *testing.T) {
	r := &results{}
	r.records = append(r.records, roundsOf("burndown", "jobs_per_s", map[string][]float64{
		ours: {80_000, 90_000, 70_000}, river: {40_000, 20_000, 30_000}, floor: {100_000, 100_000, 100_000},
	})...)
	r.records = append(r.records, roundsOf("latency", "p50_ms", map[string][]float64{ours: {1.6}, river: {0.9}})...)
	r.records = append(r.records, roundsOf("latency", "apart_p50_ms", map[string][]float64{ours: {1.9}})...)
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "benchmarks"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := r.writeReport(folder); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(folder, "benchmarks.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := strings.Join(strings.Fields(string(content)), " ") // the tables are padded
	for _, want := range []string{
		"80 000 (70 000 – 90 000)",                                // the median and the spread
		"| burn-down | river | ≥ 3.20× | 2.67× | missed |",        // against the medians
		"| burn-down | bare SQL | ≥ 0.70× | 0.80× | met |",        // the floor is compared here
		"- Latency at defaults, p50, ms: river has 0.90, we have", // losses are listed
		// The peers have only one producer, which is compared with both of ours.
		"| Latency at defaults, from another process | p50, ms | 1.90 | 0.90 (2.11×) |",
		"- Latency at defaults, from another process, p50, ms: river has 0.90, we have 1.90",
		"See [Other machines](#other-machines). | | |", // the notes' preface, at the head
		"## What limits us",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the report lacks %q", want)
		}
	}
	if strings.Contains(page, "- Burn-down, jobs/s") {
		t.Error("the floor, or a slower peer, is listed as a loss")
	}
	plot, err := os.ReadFile(filepath.Join(folder, "benchmarks", "burn-down.svg"))
	if err != nil || !strings.Contains(string(plot), "80 000") {
		t.Errorf("the plot of burn-down lacks the median (%v)", err)
	}
}

func TestEveryRoundBeginsWithAnotherSystem(t *testing.T) {
	s := &series{systems: []*system{{name: ours}, {name: river}, {name: floor}}}
	names := []string{ours, river, graphile, floor} // one of them cannot run here
	want := []string{ours, river, floor, ours}
	for round, first := range want {
		if got := s.turn(round+1, names); len(got) != 3 || got[0].name != first {
			t.Errorf("round %d has %d systems and begins with %s, want 3 and %s", round+1, len(got), got[0].name, first)
		}
	}
}
