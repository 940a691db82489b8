package examples_test

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

// The figures of the README are the medians of the last `make bench`, whose date and commit it states.
func TestReadmeShowsMeasuredFigures(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	rate := medians(t, "burndown", "jobs_per_s")
	wait := medians(t, "latency", "p50_ms")
	apart := medians(t, "latency", "apart_p50_ms") // the enqueuing program is not the worker's
	best := medians(t, "latency-best", "p50_ms")
	bestApart := medians(t, "latency-best", "apart_p50_ms")
	wal := medians(t, "burndown", "wal_bytes_per_job")
	for _, line := range []string{
		fmt.Sprintf("- **%s no-op jobs/s** from a backlog, Postgres and worker on the same 2 cores: %.1f × River, "+
			"%.1f × graphile-worker.",
			thousands(hundreds(rate["posthaste"])), rate["posthaste"]/rate["river"], rate["posthaste"]/rate["graphile-worker"]),
		fmt.Sprintf("- **%.2f ms** from the insert to the handler, commit included, when the worker's own process enqueues:",
			wait["posthaste"]),
		latencyRow("the worker's process enqueues, default settings", wait["posthaste"], wait),
		latencyRow("another process enqueues, default settings", apart["posthaste"], wait),
		latencyRow("another process enqueues, best settings of each", bestApart["posthaste"], best),
		fmt.Sprintf("- **%s bytes of WAL a job**, from enqueue to history: River writes %s, graphile-worker %s.",
			thousands(wal["posthaste"]), thousands(wal["river"]), thousands(wal["graphile-worker"])),
		"\nMeasured in one run of `make bench` on " + run(t) + ". [docs/benchmarks.md](docs/benchmarks.md) has\nthe details, and where Posthaste loses.",
	} {
		if !strings.Contains(string(readme), line+"\n") {
			t.Errorf("README.md lacks what docs/benchmarks/results.jsonl says: %s", line)
		}
	}
}

// The README is one page: its facts stand in docs/.
func TestReadmeIsShort(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(readme), "\n"); lines > 120 {
		t.Errorf("README.md has %d lines, want 120 at most", lines)
	}
}

// run returns when the figures were measured, and of which commit.
func run(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../docs/benchmarks/results.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	var record struct {
		Environment struct {
			Date     string
			Versions map[string]string
		}
	}
	if err := json.Unmarshal([]byte(first), &record); err != nil {
		t.Fatal(err)
	}
	return record.Environment.Date + ", at " + record.Environment.Versions["posthaste"]
}

// medians returns the median of all rounds for each system.
func medians(t *testing.T, measurement, figure string) map[string]float64 {
	t.Helper()
	text, err := os.ReadFile("../docs/benchmarks/results.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	values := map[string][]float64{}
	for line := range strings.Lines(string(text)) {
		var record struct {
			Measurement, System string
			Figures             map[string]float64
		}
		if err := json.Unmarshal([]byte(line), &record); err != nil {
			t.Fatal(err)
		}
		if value, ok := record.Figures[figure]; ok && record.Measurement == measurement {
			values[record.System] = append(values[record.System], value)
		}
	}
	all := map[string]float64{}
	for system, of := range values {
		slices.Sort(of)
		all[system] = (of[(len(of)-1)/2] + of[len(of)/2]) / 2
	}
	return all
}

// latencyRow returns the row of the README's table for one setting. Which process enqueues makes a difference to ours
// only.
func latencyRow(setting string, ours float64, others map[string]float64) string {
	row := "| " + setting
	for _, ms := range []float64{ours, others["river"], others["graphile-worker"]} {
		digits := 2
		if ms >= 10 {
			digits = 1
		}
		row += fmt.Sprintf(" | %.*f", digits, ms)
	}
	return row + " |"
}

func hundreds(x float64) float64 { return float64(int((x+50)/100) * 100) }

// thousands writes 95000 as "95 000".
func thousands(x float64) string {
	digits := fmt.Sprintf("%.0f", x)
	if len(digits) <= 3 {
		return digits
	}
	return digits[:len(digits)-3] + " " + digits[len(digits)-3:]
}
