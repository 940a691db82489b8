package docs_test

import (
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// top is the repository, from the folder of this test.
const top = ".."

var (
	fenced  = regexp.MustCompile("(?ms)^[ \t]*```.*?^[ \t]*```[ \t]*$")
	inline  = regexp.MustCompile("`[^`\n]*`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} (.+)$`)
	address = regexp.MustCompile(`https?://[^\s)]+`)
	named   = regexp.MustCompile(`(?:^|[^\w./*>-])((\w[\w.-]*)(?:/[\w.-]+)+\.(?:go|sql|sh|ya?ml|templ|md|jsonl|csv))\b`)
)

// Every link of a page leads to a file of the repository, and its fragment to a heading there.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	anchors := map[string][]string{}
	links := 0
	for page, text := range files(t, ".md") {
		if page == "bench/notes.md" { // the end of docs/benchmarks.md
			continue
		}
		for _, m := range link.FindAllStringSubmatch(inline.ReplaceAllString(fenced.ReplaceAllString(text, ""), ""), -1) {
			target, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			links++
			file := page
			if target != "" {
				file = path.Join(path.Dir(page), target)
			}
			if !exists(file) {
				t.Errorf("%s links to %s, which is not there", page, m[1])
				continue
			}
			if fragment == "" || !strings.HasSuffix(file, ".md") {
				continue
			}
			if anchors[file] == nil {
				anchors[file] = anchorsOf(t, file)
			}
			if !slices.Contains(anchors[file], fragment) {
				t.Errorf("%s links to %s: %s has no such heading", page, m[1], file)
			}
		}
	}
	if links < 100 {
		t.Errorf("%d links: this looks at the wrong place", links)
	}
}

// Where code, SQL, a message or a page names a file by its path from the top, or from its own folder, that file exists.
// The first five migrations are frozen, comments included, and name pages as they were. Addresses of other projects
// have paths of theirs, pages that compare with those projects name their files, and a test makes a tree of its own.
func TestFilesThatAreNamedExist(t *testing.T) {
	t.Parallel()
	elsewhere := []string{"migrations/0000", "internal/mutants/", "docs/why/", "internal/generated/main_test.go"}
	found := 0
	for file, text := range files(t, ".md", ".go", ".sql", ".json", ".templ", ".yml", "Makefile", "run") {
		if slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(file, prefix) }) {
			continue
		}
		text = address.ReplaceAllStringFunc(text, func(url string) string {
			if strings.Contains(url, "posthaste-dev/posthaste") {
				return strings.Replace(url, "/blob/main/", " ", 1)
			}
			return ""
		})
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			if !exists(m[2]) || m[2] == "bin" { // it is no path from the top, or of what make writes
				continue
			}
			found++
			if !exists(m[1]) && !exists(path.Join(path.Dir(file), m[1])) {
				t.Errorf("%s names %s, which is not there", file, m[1])
			}
		}
	}
	if found < 400 {
		t.Errorf("%d files are named: this looks at the wrong place", found)
	}
}

// exists reports whether the repository has a file or folder, by its path from the top.
func exists(name string) bool {
	_, err := os.Stat(filepath.Join(top, filepath.FromSlash(name)))
	return err == nil
}

// files returns the files of the repository whose names end so, by their path from the top.
func files(t *testing.T, suffixes ...string) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(top, func(at string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			hidden := strings.HasPrefix(entry.Name(), ".") && at != top && entry.Name() != ".ci"
			if hidden || slices.Contains([]string{"testdata", "bin", "node_modules"}, entry.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if !slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(entry.Name(), s) }) {
			return nil
		}
		text, err := os.ReadFile(at)
		all[filepath.ToSlash(strings.TrimPrefix(at, top+string(filepath.Separator)))] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// anchorsOf returns the anchors of a page's headings, as GitHub names them.
func anchorsOf(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(file)))
	if err != nil {
		t.Fatal(err)
	}
	anchors := []string{}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
		anchors = append(anchors, slug(m[1]))
	}
	return anchors
}

// slug returns the anchor of a heading: letters, digits, underscores and hyphens of it in lower case, spaces as
// hyphens.
func slug(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '_' || r == '-':
			return unicode.ToLower(r)
		case r == ' ':
			return '-'
		}
		return -1
	}, strings.TrimSpace(link.ReplaceAllString(title, "]")))
}
