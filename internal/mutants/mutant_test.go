package mutants

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// Each text that a mutant replaces must exist exactly once, and the result must be valid Go: an outdated list would
// plant nothing. If this fails because code moved, go run ./internal/mutants/rebase -w repairs it.
func TestEveryMutantCanBePlanted(t *testing.T) {
	t.Parallel()
	abs, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range All() {
		t.Run(m.Name, func(t *testing.T) {
			changed, err := m.Changed(abs)
			if err != nil {
				t.Fatal(err)
			}
			for file, text := range changed {
				ours, err := os.ReadFile(filepath.Join(abs, file))
				if err != nil {
					t.Fatal(err)
				}
				if text == string(ours) {
					t.Errorf("%s is as it was", file)
				}
				if !strings.HasSuffix(file, ".go") {
					continue
				}
				if _, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// promised are the mutants that the list must have, each with a row of the scorecard that catches it, which users can
// run.
var promised = []string{
	"no epoch in settle", "no epoch in extend", "epoch reset on retry", "worker-name fence", "no SKIP LOCKED",
	"sub-select claim", "no startup scan", "no poll", "synchronous_commit off", "inbox outside the transaction",
	"reaper ignores max attempts", "watermark without full scan", "notify before commit", "given-back job keeps its attempt",
}

func TestTheListIsComplete(t *testing.T) {
	t.Parallel()
	named := map[string]bool{}
	for _, m := range All() {
		if named[m.Name] {
			t.Errorf("two mutants are called %q", m.Name)
		}
		named[m.Name] = true
		if m.Name == "" || m.Breaks == "" || len(m.Edits) == 0 || len(m.Checks) == 0 {
			t.Errorf("mutant %q lacks what it breaks, its edits or its checks: %+v", m.Name, m)
		}
		for _, c := range m.Checks {
			said := len(c.Says) >= len("panic") // any failure may say less
			if (c.Row == "") == (c.Test == "") || (c.Test == "") != (c.Package == "") || !said {
				t.Errorf("mutant %q: a check is a row or a test of a package, and says something: %+v", m.Name, c)
			}
		}
	}
	for _, name := range promised {
		i := slices.IndexFunc(All(), func(m Mutant) bool { return m.Name == name })
		if i < 0 {
			t.Errorf("there is no mutant %q", name)
			continue
		}
		if !slices.ContainsFunc(All()[i].Checks, func(c Check) bool { return c.Row != "" }) {
			t.Errorf("mutant %q: no row of the scorecard has to catch it", name)
		}
	}
}

// Every invariant of the architecture is broken by a mutant.
func TestEveryInvariantIsBroken(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile(filepath.Join(root, "docs/architecture.md"))
	if err != nil {
		t.Fatal(err)
	}
	want, got := map[string]bool{}, map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| \*\*(.+?)\.?\*\*`).FindAllSubmatch(doc, -1) {
		want[string(row[1])] = true
	}
	for _, m := range All() {
		got[m.Invariant] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("invariants that mutants break (-docs/architecture.md +mutants):\n%s", diff)
	}
}
