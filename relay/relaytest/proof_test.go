package relaytest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// The table of docs/architecture.md has every case of the design, names no proof that there is not, and leaves no case
// of the suite out.
func TestTheCasesOfTheDesignHaveTheirProof(t *testing.T) {
	t.Parallel()
	page := read(t, root+"/docs/architecture.md")
	_, section, found := strings.Cut(page, "\n## What the relay must show\n")
	if !found {
		t.Fatal("docs/architecture.md has no section about what the relay must show")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	declared, rows := declarations(t), rowsOfTheScorecard(t)
	var unnamed []string
	for _, c := range suite {
		unnamed = append(unnamed, c.name)
	}
	lines := regexp.MustCompile(`(?m)^\| (K\d+) \| .+ \| (.+) \|$`).FindAllStringSubmatch(section, -1)
	for i, line := range lines {
		name, proof := line[1], line[2]
		if want := fmt.Sprintf("K%d", i+1); name != want {
			t.Errorf("row %d is %s, want %s", i+1, name, want)
		}
		proofs := 0
		if _, cases, ok := strings.Cut(proof, "suite: "); ok {
			cases, _, _ = strings.Cut(cases, ";")
			for c := range strings.SplitSeq(cases, ", ") {
				if !slices.ContainsFunc(suite, func(known testCase) bool { return known.name == c }) {
					t.Errorf("%s: the suite has no case %s", name, c)
				}
				unnamed = slices.DeleteFunc(unnamed, func(known string) bool { return known == c })
				proofs++
			}
		}
		for _, m := range regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(proof, -1) {
			if !declared[m[1]] {
				t.Errorf("%s: there is no %s", name, m[1])
			}
			proofs++
		}
		for _, m := range regexp.MustCompile(`\brow ([A-Z]\d+)`).FindAllStringSubmatch(proof, -1) {
			if !rows[m[1]] {
				t.Errorf("%s: the scorecard has no row %s", name, m[1])
			}
			proofs++
		}
		if proofs == 0 {
			t.Errorf("%s has no proof", name)
		}
	}
	if len(lines) != 23 {
		t.Errorf("there are %d cases, want 23", len(lines))
	}
	if len(unnamed) > 0 {
		t.Errorf("cases of the suite that the table leaves out: %v", unnamed)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// declarations returns the names of all tests and fuzz targets.
func declarations(t *testing.T) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	function := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		for _, m := range function.FindAllStringSubmatch(read(t, path), -1) {
			all[m[1]] = true
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// rowsOfTheScorecard returns the names of the scorecard's rows, and that of the row beside it.
func rowsOfTheScorecard(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob(root + "/internal/verify/*.go")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	all := map[string]bool{}
	for _, file := range files {
		for _, m := range regexp.MustCompile(`\bName: +"([A-Z]\d+)"`).FindAllStringSubmatch(read(t, file), -1) {
			all[m[1]] = true
		}
	}
	return all
}
