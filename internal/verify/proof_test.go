package verify

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// The page on what is proved says of every row what the code does, whatever the day
// of its last run: a run under other texts proved something else.
func TestTheProofSaysWhatTheRowsDo(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.Open("../../docs/proof.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer list.Close()
	runs, err := ReadRuns(list)
	if err != nil {
		t.Fatalf("docs/proof.csv: %v", err)
	}
	type line struct{ row, tier, fault, inARow string }
	var want, got []line
	for _, row := range Scorecard() {
		for _, tier := range row.Tiers {
			want = append(want, line{row.Name, string(tier), cell(row.Fault), inARow(runs, newRecord(row, Options{Tier: tier}))})
		}
	}
	listed := regexp.MustCompile(`(?m)^\| (?:\[(\w+)\]\(#\S+\)|(\w+)) \| ([PS]) \| .*? \| (.*) \|[^|]*\|[^|]*\| ?([^|]*?) \|$`)
	for _, m := range listed.FindAllStringSubmatch(string(page), -1) {
		got = append(got, line{m[1] + m[2], m[3], m[4], m[5]})
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{})); diff != "" {
		t.Errorf("the table of docs/proof.md (-the rows +the page):\n%s", diff)
	}

	sections := regexp.MustCompile(`(?ms)^## (\w+), tier ([PS])$.*?^- Pass: .*?\n`).FindAllStringSubmatch(string(page), -1)
	if n := strings.Count(string(page), ", tier "); n != len(sections) {
		t.Errorf("%d sections were read of %d", len(sections), n)
	}
	for _, m := range sections {
		rows, err := Find(Tier(m[2]), m[1])
		if err != nil {
			t.Errorf("docs/proof.md has a section of a row that is not there: %v", err)
			continue
		}
		r := newRecord(rows[0], Options{Tier: Tier(m[2])})
		if diff := cmp.Diff(r.texts(), m[0]); diff != "" {
			t.Errorf("the section of %s, tier %s, in docs/proof.md (-the row +the page):\n%s", m[1], m[2], diff)
		}
	}
}

// Ten seeds in a row are ten different ones, on one major version, after the last
// failure.
func TestTheProofCountsTheSeedsSinceTheLastFailure(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	runs := []struct {
		version string
		seed    uint64
		passed  bool
	}{{"15.18", 1, true}, {"15.18", 2, false}, {"15.18", 3, true}, {"18.1", 3, true}, {"15.19", 4, true}, {"15.19", 4, true}, {"18.1", 4, true}}
	for i, run := range runs {
		// The last two are in one second.
		r := &Record{Row: "A1", Tier: TierP, Seed: run.seed, Passed: run.passed, Started: time.Unix(int64(min(i, 5)), 0)}
		r.Server.Version = run.version
		in := filepath.Join(folder, strconv.Itoa(i), "deeper")
		if err := os.MkdirAll(in, 0o755); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Write(in); err != nil {
			t.Fatal(err)
		}
	}
	records, err := ReadRecords(folder)
	if err != nil || len(records) != len(runs) {
		t.Fatalf("%d records were read of %d, error %v", len(records), len(runs), err)
	}
	lines := AddRuns(nil, records[:4])
	for range 2 { // what was added before is not added again, and what is read is what was written
		var file bytes.Buffer
		if err := WriteRuns(&file, AddRuns(lines, records)); err != nil {
			t.Fatal(err)
		}
		if lines, err = ReadRuns(&file); err != nil || len(lines) != len(runs) {
			t.Fatalf("%d lines were read of %d, error %v", len(lines), len(runs), err)
		}
	}
	other := lines[3]
	other.Started, other.Result, other.Texts = time.Unix(99, 0), "failed", "of another text"
	var page strings.Builder
	if err := WriteProof(&page, records, append(lines, other)); err != nil {
		t.Fatal(err)
	}
	if want := "| 2 on 15, 2 on 18 |\n"; !strings.Contains(page.String(), want) {
		t.Errorf("the page has no %q:\n%s", want, page.String())
	}
	for _, bad := range []string{"", "started,row\n", "started,row,tier,postgresql,seed,result,commit,texts\nyesterday,A1,P,15.1,1,passed,,\n"} {
		if lines, err := ReadRuns(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, lines)
		}
	}
}

// A folder of runs adds to the page: it says the same of all other rows as before,
// though their folders are gone.
func TestThePageKeepsTheRowsOfEarlierFolders(t *testing.T) {
	t.Parallel()
	run := func(row string, tier Tier, seed uint64, minute int64) *Record {
		return &Record{
			Row: row, Tier: tier, Seed: seed, Passed: true, Started: time.Unix(60*minute, 0).UTC(), Took: 1.25, Counts: map[string]int{"jobs": 8},
			Faults: []fault.Done{{Kind: "kill -9 worker"}}, FaultCounts: map[string]int{"kill -9 worker": 1},
			Expectations: []Expectation{{What: "lost", Op: "=", OK: true}}, Figures: []Figure{{Name: "p99_ms", Value: 12.345}},
		}
	}
	page := func(records []*Record) string {
		var b strings.Builder
		if err := WriteProof(&b, records, nil); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	kept := func(records []*Record) []*Record {
		var b bytes.Buffer
		if err := WriteKept(&b, records); err != nil {
			t.Fatal(err)
		}
		got, err := ReadKept(&b)
		if err != nil || len(got) != len(records) {
			t.Fatalf("%d records were read of %d, error %v", len(got), len(records), err)
		}
		return got
	}
	first := []*Record{run("A1", TierP, 1, 1), run("A2", TierP, 1, 1), run("A1", TierS, 1, 1), run("A1", TierP, 2, 2), run("gone", TierP, 1, 9)}
	old := kept(Newest(first))
	if diff := cmp.Diff(page(first), page(old)); diff != "" {
		t.Errorf("the page (-from the records +from what is kept of them):\n%s", diff)
	}
	second := []*Record{run("A2", TierP, 3, 3), run("A1", TierP, 3, 0)}
	if diff := cmp.Diff(page(append(first, second...)), page(kept(Newest(append(old, second...))))); diff != "" {
		t.Errorf("the page (-from all records +from what is kept and new ones):\n%s", diff)
	}
	if got, err := ReadKept(strings.NewReader("{\"row\":\"A1\"}\n{\"row\":")); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("half a line was read as %v, error %v", got, err)
	}
}
