// Command rebase lists the edits of planted bugs that do not fit our code any more, and updates the anchors of those
// whose text has moved:
//
//	go run ./internal/mutants/rebase [-w]
//
// An edit whose text is gone must be rewritten by hand: the command names it. It exits with 1 if there are such edits,
// or if anchors have moved and -w was not given. A place that was found by its text alone may be another one with the
// same text, so the command prints how to plant these bugs.
package main

import (
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

func main() {
	write := flag.Bool("w", false, "write the new anchors into internal/mutants")
	flag.Parse()
	left, err := rebase(os.Stdout, *write)
	if err != nil {
		fmt.Fprintln(os.Stderr, "rebase:", err)
		os.Exit(2)
	}
	if left > 0 {
		os.Exit(1)
	}
}

// rebase returns the number of edits that cannot be made.
func rebase(w io.Writer, write bool) (left int, err error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return 0, fmt.Errorf("go env GOMOD: %w", err)
	}
	root := filepath.Dir(strings.TrimSpace(string(mod)))
	tree, err := readTree(root)
	if err != nil {
		return 0, err
	}
	all := mutants.All()
	found := tree.strays(all)
	for _, s := range found {
		if s.to == "" {
			left++
		}
		fmt.Fprintln(w, s)
	}
	moved := slices.DeleteFunc(slices.Clone(found), func(s stray) bool { return s.to == "" })
	fmt.Fprintf(w, "%d planted bugs: %d edits are elsewhere now, %d fit nowhere\n", len(all), len(moved), left)
	if len(moved) == 0 {
		return left, nil
	}
	if !write {
		return len(found), nil
	}
	if err := rewrite(filepath.Join(root, ours), moved); err != nil {
		return 0, err
	}
	fmt.Fprintf(w, "see that they are still caught:\n\t"+
		"go run ./internal/pgtest/withserver -- go run ./internal/mutants/run%s\n", names(moved))
	return left, nil
}

// names quotes the mutants for a shell.
func names(strays []stray) string {
	var b strings.Builder
	seen := map[string]bool{}
	for _, s := range strays {
		if !seen[s.mutant] {
			fmt.Fprintf(&b, " %q", s.mutant)
		}
		seen[s.mutant] = true
	}
	return b.String()
}

// ours is the folder with the texts of all edits, in which no edit is made.
const ours = "internal/mutants"

// tree holds the declarations of every folder of the module.
type tree map[string][]mutants.Declaration

func readTree(root string) (tree, error) {
	t := tree{}
	return t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		if name := entry.Name(); path != root && (name == "testdata" || strings.HasPrefix(name, ".")) {
			return filepath.SkipDir
		}
		folder, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if folder = filepath.ToSlash(folder); folder == ours {
			return filepath.SkipDir
		}
		t[folder], err = mutants.Declarations(root, folder)
		return err
	})
}

// stray is an edit that cannot be made where it is anchored.
type stray struct {
	mutant string
	edit   mutants.Edit
	why    error
	to     string   // the new anchor, if there is one
	at     []string // where the text was found
}

func (s stray) String() string {
	switch {
	case s.to != "":
		return fmt.Sprintf("%s: %s is now %s at %s", s.mutant, s.edit.In, s.to, s.at[0])
	case len(s.at) > 0:
		return fmt.Sprintf("%s: %v\n\tit is in each of %s", s.mutant, s.why, strings.Join(s.at, ", "))
	}
	return fmt.Sprintf("%s: %v", s.mutant, s.why)
}

func (t tree) strays(all []mutants.Mutant) (found []stray) {
	for _, m := range all {
		for _, e := range m.Edits {
			if _, err := e.Find(t[e.Folder()]); err != nil {
				s := stray{mutant: m.Name, edit: e, why: err}
				s.to, s.at = t.search(e)
				found = append(found, s)
			}
		}
	}
	return found
}

// search looks for the edit's text: under the same name in other folders, then under other names in the same folder,
// then everywhere. The first of these searches that finds the text decides: a single place gives the new anchor.
func (t tree) search(e mutants.Edit) (to string, at []string) {
	name := strings.TrimPrefix(e.In, e.Folder())
	for _, near := range []func(folder string, d mutants.Declaration) bool{
		func(folder string, d mutants.Declaration) bool { return d.Name == folder+name },
		func(folder string, _ mutants.Declaration) bool { return folder == e.Folder() },
		func(string, mutants.Declaration) bool { return true },
	} {
		at = nil
		for folder, declared := range t {
			for _, d := range declared {
				if near(folder, d) && e.Fits(d) && !slices.Contains(at, d.Position()) {
					to, at = d.Name, append(at, d.Position())
				}
			}
		}
		if len(at) == 1 {
			return to, at
		}
		if len(at) > 1 {
			slices.Sort(at)
			return "", at
		}
	}
	return "", nil
}
