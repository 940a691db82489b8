package docs_test

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/posthaste-dev/posthaste/internal/foreign"
	"github.com/posthaste-dev/posthaste/internal/release"
)

// The figures of the README are the medians of the last `make bench`, whose date and commit it states, and those of the
// other machines in the notes on the benchmarks. It has no other figures.
func TestREADMEShowsMeasuredFigures(t *testing.T) {
	t.Parallel()
	_, shown, _ := strings.Cut(readREADME(t), "└────────────────────────┘    leases of dead workers ──▶ reaper\n```\n")
	shown, _, _ = strings.Cut(shown, "\n## ")
	for _, lines := range figuresOfREADME(t) {
		rest := strings.Replace(shown, lines+"\n", "", 1)
		if rest == shown {
			t.Errorf("README.md lacks what the benchmarks say: %s", lines)
		}
		shown = rest
	}
	if figures := regexp.MustCompile(`p?\d[\d .]*`).FindAllString(shown, -1); !slices.Equal(figures, []string{"p50 ", "100 "}) {
		t.Errorf("README.md has figures that are in no record of the benchmarks: %q, in\n%s", figures, shown)
	}
}

// figuresOfREADME returns the lines of the README that have figures, from the records of the benchmarks.
func figuresOfREADME(t *testing.T) []string {
	t.Helper()
	rate := medians(t, "burndown", "jobs_per_s")
	wait := medians(t, "latency", "p50_ms")
	apart := medians(t, "latency", "apart_p50_ms") // the enqueuing program is not the worker's
	best := medians(t, "latency-best", "p50_ms")
	bestApart := medians(t, "latency-best", "apart_p50_ms")
	wal := medians(t, "burndown", "wal_bytes_per_job")
	later, slow := otherMachine(t, "27 November 2026, commit 9cf1688, an AMD EPYC."), otherMachine(t, "The slow machine**, as")
	return []string{
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
		"Measured in one run of `make bench` on " + measuredOn(t) + ". [docs/benchmarks.md](docs/benchmarks.md) has\nthe details, and where Posthaste loses.",
		fmt.Sprintf("On other machines of two cores it did %s and %s jobs/s (%.1f and %.1f × River), with a p50 of %.2f and %.2f ms.",
			thousands(later.rate), thousands(slow.rate), later.ofRiver, slow.ofRiver, later.p50, slow.p50),
	}
}

type machine struct{ rate, ofRiver, p50 float64 }

// otherMachine returns what the notes on the benchmarks record of a run on another machine, whose entry begins so.
func otherMachine(t *testing.T, begins string) machine {
	t.Helper()
	page, err := os.ReadFile("benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	_, entry, _ := strings.Cut(string(page), "\n- **"+begins)
	entry, _, _ = strings.Cut(entry, "\n- ")
	entry = strings.Join(strings.Fields(entry), " ")
	m := regexp.MustCompile(`Burn-down (\d+) (\d+) jobs/s: ([\d.]+) × River,.* Latency p50 ([\d.]+) ms`).FindStringSubmatch(entry)
	if m == nil {
		t.Fatalf("docs/benchmarks.md has no figures of another machine under %q", begins)
	}
	number := func(text string) float64 {
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	return machine{number(m[1] + m[2]), number(m[3]), number(m[4])}
}

// What the README states about long transactions and backlogs is no better than what was measured: the least part of
// the rate that was kept in any run, and the time of a claim in the last one.
func TestREADMEStatesWhatBacklogsCost(t *testing.T) {
	t.Parallel()
	text := strings.Join(strings.Fields(readREADME(t)), " ")
	m := regexp.MustCompile(`working off a backlog kept at least (0\.\d+) of its rate next to .* a claim took ([\d.]+) ms \(p99\)`).FindStringSubmatch(text)
	if m == nil {
		t.Fatal("README.md does not state what long transactions and backlogs cost")
	}
	page, err := os.ReadFile("benchmarks.md")
	if err != nil {
		t.Fatal(err)
	}
	future := regexp.MustCompile("\\*\\*Future jobs\\*\\* cost nothing measurable: `kept` is (0\\.\\d+) to").FindStringSubmatch(string(page))
	if future == nil || m[1] > future[1] {
		t.Errorf("README.md states that %s is kept, docs/benchmarks.md %q", m[1], future)
	}
	for _, of := range []string{"held-snapshot", "future"} {
		if kept := medians(t, of, "kept")["posthaste"]; m[1] > fmt.Sprintf("%.2f", kept) {
			t.Errorf("README.md states that %s is kept, results.jsonl %.2f (%s)", m[1], kept, of)
		}
	}
	if p99 := fmt.Sprintf("%.1f", medians(t, "backlog", "claim_p99_ms")["posthaste"]); m[2] != p99 {
		t.Errorf("README.md states that a claim takes %s ms, results.jsonl %s", m[2], p99)
	}
}

// The README is one page: its facts stand in docs/. It shows how to get the module, and states which versions of the
// product, of Postgres and of Go it is about.
func TestREADMEIsOnePageWithVersions(t *testing.T) {
	t.Parallel()
	readme := readREADME(t)
	if lines := strings.Count(readme, "\n"); lines > 120 {
		t.Errorf("README.md has %d lines, want 120 at most", lines)
	}
	module, err := os.ReadFile("../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	oldest := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindSubmatch(module)
	tested, err := os.ReadFile("../internal/pgdev/start.go")
	if err != nil {
		t.Fatal(err)
	}
	majors := strings.Split(string(regexp.MustCompile(`majors = \[\]string\{"(.*)"\}`).FindSubmatch(tested)[1]), `", "`)
	if fmt.Sprint(foreign.Oldest, foreign.Newest) != slices.Min(majors)+" "+slices.Max(majors) {
		t.Errorf("internal/foreign knows Postgres %d to %d, and the tests run on %v", foreign.Oldest, foreign.Newest, majors)
	}
	for _, want := range []string{
		"\ngo get github.com/posthaste-dev/posthaste@",
		release.Name(),
		fmt.Sprintf("\nPostgres %s to %s, Go %s or newer.", slices.Min(majors), slices.Max(majors), oldest[1]),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md lacks %q", want)
		}
	}
}

// The changelog of a release is read before an upgrade: that of 0.1.0 is one page.
func TestProseOfTheChangelogIsOnePage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	_, first, found := strings.Cut("\n"+string(text), "\n## 0.1.0")
	first, _, _ = strings.Cut(first, "\n## ")
	if lines := strings.Count(first, "\n"); !found || lines > 80 {
		t.Errorf("CHANGELOG.md has %d lines about 0.1.0, want some, and 80 at most", lines)
	}
}

func readREADME(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// measuredOn returns when the figures were measured, and of which commit.
func measuredOn(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("benchmarks/results.jsonl")
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
	text, err := os.ReadFile("benchmarks/results.jsonl")
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
