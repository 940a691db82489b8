package docs_test

import (
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// ofExample is the comment before a block that shows a part of a compiled example: <!-- outbox.ExampleEnqueue -->.
	ofExample = regexp.MustCompile(`^(\w+)\.(Example\w*)$`)
	anExample = regexp.MustCompile("`(\\w+\\.Example\\w*)`")
	declared  = regexp.MustCompile(`(?m)^func (Example\w*)\(\)`)
)

// withoutCode are guides that begin with something else: a server and a file, a role, another language.
var withoutCode = []string{"docs/guides/publish-events.md", "docs/guides/tenants.md", "docs/guides/other-languages.md"}

// A guide asks its question in its first paragraph, and the first thing after it is code that is compiled.
func TestGuidesOpenWithCompiledCode(t *testing.T) {
	t.Parallel()
	examples := examplesByName(t)
	guides := 0
	for page, text := range files(t, ".md") {
		shown := block.FindAllStringSubmatch(text, -1)
		for _, m := range shown {
			if !ofExample.MatchString(m[1]) {
				continue
			}
			source, exists := examples[m[1]]
			if m[3] == "text" { // what the example prints
				source = strings.ReplaceAll(source, "\t// ", "")
			}
			if !exists {
				t.Errorf("%s shows a part of %s, which no test file declares", page, m[1])
			} else if line := missing(m[4], source); line != "" {
				t.Errorf("%s shows of %s what is not in it: %s", page, m[1], line)
			}
		}
		for _, m := range anExample.FindAllStringSubmatch(text, -1) {
			if _, exists := examples[m[1]]; !exists {
				t.Errorf("%s names %s, which no test file declares", page, m[1])
			}
		}
		if !strings.HasPrefix(page, "docs/guides/") {
			continue
		}
		guides++
		parts := strings.SplitN(text, "\n\n", 3)
		if len(parts) < 3 || !strings.Contains(parts[1], "?") {
			t.Errorf("%s does not ask its question in the first paragraph", page)
		}
		opening, _, _ := strings.Cut(text, "\n## ")
		if !slices.Contains(withoutCode, page) && !regexp.MustCompile("(?m)^<!-- (\\w+\\.Example|examples/).* -->\n+```go").MatchString(opening) {
			t.Errorf("%s does not open with compiled code", page)
		}
	}
	if guides < 20 {
		t.Errorf("%d guides: this looks at the wrong place", guides)
	}
}

// examplesByName returns the files that declare examples, by package and name: outbox.ExampleEnqueue.
func examplesByName(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for file, source := range files(t, "_test.go") {
		for _, m := range declared.FindAllStringSubmatch(source, -1) {
			all[path.Base(path.Dir(file))+"."+m[1]] = source
		}
	}
	return all
}

// missing returns a line of a block that the source does not have: what stands between empty lines, or lines of …, is
// in it line by line. A function is one by name in the page, and a value in the example.
func missing(block, source string) string {
	flat := func(text string) string {
		var lines strings.Builder
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			line = regexp.MustCompile(`^func (\w+)\((ctx .*)`).ReplaceAllString(line, "$1 := func($2")
			lines.WriteString(regexp.MustCompile(`^(_ =|handle :=) func\(`).ReplaceAllString(line, "func(") + "\n")
		}
		return lines.String()
	}
	source = flat(source)
	for part := range strings.SplitSeq(strings.ReplaceAll(flat(block), "\n…\n", "\n\n"), "\n\n") {
		if part = strings.Trim(part, "\n"); part != "" && !strings.Contains(source, part) {
			return part
		}
	}
	return ""
}

// The index leads to every page of the manual.
func TestTheIndexLeadsToEachPage(t *testing.T) {
	t.Parallel()
	all := files(t, ".md")
	for page := range all {
		name, inDocs := strings.CutPrefix(page, "docs/")
		if inDocs && manual.MatchString(page) && name != "README.md" && !strings.Contains(all["docs/README.md"], "]("+name+")") {
			t.Errorf("docs/README.md does not lead to %s", name)
		}
	}
}
