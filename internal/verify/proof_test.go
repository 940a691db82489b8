package verify

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/verify/fault"
)

// The page must equal what WriteProof makes of the records in docs, so that it describes every row as the code does,
// whenever the row last ran. `posthaste-proof verify --write-proof docs/proof.md FOLDER` writes it anew.
func TestTheProofIsWrittenFromItsRecords(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	records, err := readFile("../../docs/proof.jsonl", ReadKept)
	if err != nil {
		t.Fatal(err)
	}
	runs, err := readFile("../../docs/proof.csv", ReadRuns)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	if err := WriteProof(&want, records, runs); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(strings.Split(want.String(), "\n"), strings.Split(string(page), "\n")); diff != "" {
		t.Errorf("docs/proof.md (-written from docs/proof.jsonl and docs/proof.csv +the page):\n%s", diff)
	}
}

func readFile[T any](path string, read func(io.Reader) ([]T, error)) ([]T, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return read(file)
}

// The page does not count a run that was made under another description of its row.
func TestTheProofSaysThatARunIsOutdated(t *testing.T) {
	t.Parallel()
	record := recordOf(Scorecard()[0])
	record.Passed, record.Pass = true, "something else"
	var page strings.Builder
	if err := WriteProof(&page, []*Record{record}, AddRuns(nil, []*Record{record})); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"before the row's description changed |", "- This run was made before the row's description changed"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page has no %q:\n%s", want, page.String())
		}
	}
}

// A run of a working copy that had changes cannot be repeated from the commit alone: the page and its list say so.
func TestTheProofNamesChangesBesideTheCommit(t *testing.T) {
	t.Parallel()
	record := recordOf(Scorecard()[0])
	record.Passed, record.Commit = true, strings.Repeat("c0ffee", 7)[:40]+"+changes"
	var page strings.Builder
	runs := AddRuns(nil, []*Record{record})
	if err := WriteProof(&page, []*Record{record}, runs); err != nil {
		t.Fatal(err)
	}
	const want = "c0ffeec0ffee+changes"
	if !strings.Contains(page.String(), "commit `"+want+"`") {
		t.Errorf("the page does not name commit %s:\n%s", want, page.String())
	}
	if len(runs) != 1 || runs[0].Commit != want {
		t.Errorf("runs are %+v, want one of commit %s", runs, want)
	}
}

// recordOf returns a record of a run of the row at tier P.
func recordOf(row Row) *Record {
	return &Record{Row: row.Name, Tier: TierP, Fault: row.Fault, Workload: row.Workload, Pass: row.Pass}
}

func TestRowsAreNamedAndInOrder(t *testing.T) {
	t.Parallel()
	rows := Scorecard()
	for i, row := range rows {
		if row.Title == "" {
			t.Errorf("row %s has no title", row.Name)
		}
		if !slices.ContainsFunc(groups, func(g group) bool { return strings.HasPrefix(row.Name, g.letter) }) {
			t.Errorf("the page does not say what the group of row %s is about", row.Name)
		}
		if i > 0 && compareNames(rows[i-1].Name, row.Name) >= 0 {
			t.Errorf("row %s comes after %s", row.Name, rows[i-1].Name)
		}
	}
	names := []string{"A2", "A3", "A3b", "A4", "A10", "B1"}
	for i := range names[1:] {
		if compareNames(names[i], names[i+1]) >= 0 || compareNames(names[i+1], names[i]) <= 0 {
			t.Errorf("%s does not come before %s", names[i], names[i+1])
		}
	}
}

// The legend names checks exactly as the rows do.
func TestTheLegendHasTheChecksThatAreMade(t *testing.T) {
	t.Parallel()
	var made strings.Builder
	for _, name := range []string{"check.go", "published.go"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		made.Write(text)
	}
	for _, set := range checkSets {
		for _, check := range set.checks {
			if check != noCrashes && !strings.Contains(made.String(), fmt.Sprintf("r.None(%q, ", check)) {
				t.Errorf("%s: nothing checks %q", set.name, check)
			}
		}
	}
	all := slices.Concat(checkSets[1].checks, []string{"others", "others"}, checkSets[2].checks[1:])
	want := "all of history ([shared checks](#shared-checks)); others; " + strings.Join(checkSets[2].checks[1:], "; ")
	if got := foundNothing(all); got != want {
		t.Errorf("the checks that found nothing are\n%s, want\n%s", got, want)
	}
}

// Ten seeds in a row are ten different seeds, on one major version, since the last failure.
func TestTheProofCountsTheSeedsSinceTheLastFailure(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	runs := []struct {
		version string
		seed    uint64
		passed  bool
	}{{"15.18", 1, true}, {"15.18", 2, false}, {"15.18", 3, true}, {"18.1", 3, true}, {"15.19", 4, true}, {"15.19", 4, true}, {"18.1", 4, true}}
	for i, run := range runs {
		// The last two started in the same second.
		r := recordOf(Scorecard()[0])
		r.Seed, r.Passed, r.Started = run.seed, run.passed, time.Unix(int64(min(i, 5)), 0)
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
	for range 2 { // lines are not added twice, and are read as they were written
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
	if want := ": 2 on 15, 2 on 18 | not run |\n"; !strings.Contains(page.String(), want) {
		t.Errorf("the page has no %q:\n%s", want, page.String())
	}
	for _, bad := range []string{"", "started,row\n", "started,row,tier,postgresql,seed,result,commit,texts\nyesterday,A1,P,15.1,1,passed,,\n"} {
		if lines, err := ReadRuns(strings.NewReader(bad)); err == nil {
			t.Errorf("%q was read as %v", bad, lines)
		}
	}
}

// A folder of new runs adds to the page: all other rows stay as they were, though the folders of their runs are gone.
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
