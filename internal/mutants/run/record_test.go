package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

// An interrupted run continues with what is left, check by check; a check that has changed since is tried again.
func TestARunGoesOnWhereItWasBrokenOff(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "record.jsonl")
	first := mutants.Check{Package: "a", Test: "TestA", Says: "no"}
	second := mutants.Check{Row: "B1", Says: "late"}
	all := []mutants.Mutant{{Name: "one", Checks: []mutants.Check{first, second}}, {Name: "two", Checks: []mutants.Check{first}}}

	r, err := openRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all, r.missing(all)); diff != "" {
		t.Errorf("left to be tried by an empty record (-want +got):\n%s", diff)
	}
	if err := r.add(all[0], []verdict{{check: first}, {check: second, err: errors.New("the check passes")}}, "abc"); err != nil {
		t.Fatal(err)
	}
	// It was killed while it wrote.
	if err := os.WriteFile(path, append(readFile(t, path), `{"mutant":"two","che`...), 0o644); err != nil {
		t.Fatal(err)
	}
	if r, err = openRecord(path); err != nil {
		t.Fatal(err)
	}
	want := []mutants.Mutant{{Name: "one", Checks: []mutants.Check{second}}, all[1]}
	if diff := cmp.Diff(want, r.missing(all)); diff != "" {
		t.Errorf("left to be tried (-want +got):\n%s", diff)
	}
	if err := r.add(all[1], []verdict{{check: first}}, "abc"); err != nil {
		t.Fatal(err)
	}
	if r, err = openRecord(path); err != nil || len(r.missing(all)) != 1 {
		t.Errorf("after another run is left %v, %v, want one", r.missing(all), err)
	}
	changed := []mutants.Mutant{{Name: "one", Checks: []mutants.Check{{Package: "a", Test: "TestA", Says: "something else"}}}}
	if got := r.missing(changed); len(got) != 1 {
		t.Errorf("a check that was changed is not tried again: %v", got)
	}
}

// The page lists every mutant, and the result of each check that is known.
func TestThePageLeavesNothingOut(t *testing.T) {
	t.Parallel()
	r, err := openRecord("")
	if err != nil {
		t.Fatal(err)
	}
	all := mutants.All()
	caught, passed := all[0], all[1]
	for m, err := range map[*mutants.Mutant]error{&caught: nil, &passed: errors.New("the check passes")} {
		if err := r.add(*m, []verdict{{check: m.Checks[0], err: err}}, "abc"); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "page.md")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	page := string(readFile(t, path))
	checks := 0
	for _, m := range all {
		checks += len(m.Checks)
		if !strings.Contains(page, "| "+m.Name+" | ") {
			t.Errorf("the page has no mutant %q", m.Name)
		}
	}
	if notTried, notCaught := strings.Count(page, "| not tried |"), strings.Count(page, "| **not caught** |"); notTried != checks-2 || notCaught != 1 {
		t.Errorf("%d checks were not tried and %d caught nothing, want %d and 1", notTried, notCaught, checks-2)
	}
}

// Each check runs once on our own code, those of a package together.
func TestChecksOfAPackageAreOne(t *testing.T) {
	t.Parallel()
	got := together([]mutants.Mutant{
		{Checks: []mutants.Check{{Package: "a", Test: "TestA/x"}, {Row: "B1", Says: "late"}}},
		{Checks: []mutants.Check{{Package: "a", Test: "TestA/y"}, {Package: "a", Test: "TestB"}, {Row: "B1", Says: "lost"}}},
	})
	want := []mutants.Check{{Row: "B1"}, {Package: "a", Test: "(TestA|TestB)"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("checks (-want +got):\n%s", diff)
	}
	if got := pattern(want[1].Test); got != "^(TestA|TestB)$" {
		t.Errorf("pattern = %q", got)
	}
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}
