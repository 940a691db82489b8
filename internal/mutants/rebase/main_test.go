package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestStraysAreFound(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, filepath.Join(root, "a/a.go"), `package a

func stays() { one() }

func split() { two() }

func x() { six() }

func y() { six() }
`)
	write(t, filepath.Join(root, "b/c/c.go"), `package c

type t int

func (t) moved() {
	two()
	four()
}

func other() { four(); five() }
`)
	write(t, filepath.Join(root, "internal/mutants/a.go"), "package mutants\n\nconst c = `five() six() seven()`\n")
	tree, err := readTree(root)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"stays":                      "-",
		"to another function":        "a.split",
		"to another package":         "b/c.t.moved",
		"and to another function":    "b/c.other",
		"to one of several, neither": "",
		"it is gone":                 "",
	}
	got := map[string]string{}
	for name := range want {
		got[name] = "-"
	}
	for _, s := range tree.strays([]mutants.Mutant{
		{Name: "stays", Edits: []mutants.Edit{{In: "a.stays", Old: "one()"}}},
		{Name: "to another function", Edits: []mutants.Edit{{In: "a.whole", Old: "two()"}}},
		{Name: "to another package", Edits: []mutants.Edit{{In: "a.t.moved", Old: "four( )"}}},
		{Name: "and to another function", Edits: []mutants.Edit{{In: "a.stays", Old: "five()"}}},
		{Name: "to one of several, neither", Edits: []mutants.Edit{{In: "a.stays", Old: "six()"}}},
		{Name: "it is gone", Edits: []mutants.Edit{{In: "a.stays", Old: "seven()"}}},
	}) {
		got[s.mutant] = s.to
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("where edits are now (-want +got):\n%s", diff)
	}
}

func TestAnchorsAreRewritten(t *testing.T) {
	t.Parallel()
	const before = `package mutants

const (
	here = "a.f"
	what = ` + "`one`" + `
)

var all = []Mutant{
	{Name: "1", Edits: []Edit{{here, what, ""}, {"a.f", "two", ""}, {"a.g", "one", ""}}},
}

var alone = Edit{In: "a.f", Old: "one"}
var unlike = []string{"a.f", "one", ""}

type Mutant struct { Name string; Edits []Edit }
type Edit struct { In, Old, New string }
`
	const after = `package mutants

const (
	here = "a.f"
	what = ` + "`one`" + `
)

var all = []Mutant{
	{Name: "1", Edits: []Edit{{"b.f", what, ""}, {"a.f", "two", ""}, {"a.g", "one", ""}}},
}

var alone = Edit{In: "b.f", Old: "one"}
var unlike = []string{"a.f", "one", ""}

type Mutant struct { Name string; Edits []Edit }
type Edit struct { In, Old, New string }
`
	dir := t.TempDir()
	write(t, filepath.Join(dir, "m.go"), before)
	if err := rewrite(dir, []stray{{edit: mutants.Edit{In: "a.f", Old: "one"}, to: "b.f"}}); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "m.go"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(after, string(got)); diff != "" {
		t.Errorf("rewritten (-want +got):\n%s", diff)
	}
}
