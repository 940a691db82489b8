package examples_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// snippet is a ```go or ```sql block of a Markdown file that names its source in a comment
// on the line before.
var snippet = regexp.MustCompile("(?m)^<!-- (examples/[^ ]+\\.(?:go|sql)) -->\n+```(?:go|sql)\n((?s:.*?))^```$")

const (
	snippetBegin = "// snippet:begin\n"
	snippetEnd   = "// snippet:end\n"
)

func TestPagesShowCompiledCode(t *testing.T) {
	for page, sources := range map[string][]string{
		"README.md":                {"examples/producer/main.go", "examples/worker/main.go"},
		"docs/start/quickstart.md": {"examples/quickstart/main.go"},
		"docs/guides/testing.md": {
			"examples/testing/orders.go", "examples/testing/reader_test.go", "examples/testing/setup_test.go",
			"examples/testing/enqueue_test.go", "examples/testing/unit_test.go", "examples/testing/role_test.go", "examples/testing/work_test.go", "examples/testing/advance_test.go", "examples/testing/crash_test.go",
		},
		"docs/migrate/to-posthaste.md": {
			"examples/migrate/river.sql", "examples/migrate/graphile_worker.sql", "examples/migrate/outbox_table.sql", "examples/migrate/asynq/main.go",
		},
		"docs/guides/publish-events.md": {"examples/events/order.go", "examples/points/main.go"},
	} {
		t.Run(page, func(t *testing.T) { showsCompiledCode(t, page, sources) })
	}
}

func showsCompiledCode(t *testing.T, page string, sources []string) {
	text, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(page)))
	if err != nil {
		t.Fatal(err)
	}
	found := snippet.FindAllSubmatch(text, -1)
	for _, match := range found {
		path, got := string(match[1]), string(match[2])
		source, err := os.ReadFile(filepath.Join("..", filepath.FromSlash(path)))
		if err != nil {
			t.Errorf("%s names a source that is not there: %v", page, err)
			continue
		}
		want, err := shown(string(source))
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if got != want {
			t.Errorf("%s does not show what is in %s: %s", page, path, firstDifference(got, want))
		}
	}
	if markers := strings.Count(string(text), "<!-- examples/"); markers != len(found) {
		t.Errorf("%s has %d comments that name a source, but %d with a block of code after them", page, markers, len(found))
	}
	for _, path := range sources {
		if !slices.ContainsFunc(found, func(match [][]byte) bool { return string(match[1]) == path }) {
			t.Errorf("%s does not show %s", page, path)
		}
	}
}

// shown returns the part of a source that is to be shown: between the marker lines if it has them.
func shown(source string) (string, error) {
	_, rest, begins := strings.Cut(source, snippetBegin)
	if !begins {
		return source, nil
	}
	part, _, ends := strings.Cut(rest, snippetEnd)
	if !ends {
		return "", fmt.Errorf("%q without %q", strings.TrimSpace(snippetBegin), strings.TrimSpace(snippetEnd))
	}
	return strings.TrimSpace(part) + "\n", nil
}

func TestShownIsBetweenTheMarkers(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"a source without markers is shown whole": {"package x\n", "package x\n"},
		"with markers it is what is between them": {"package x\n\n// snippet:begin\n\nvar a int\n\n// snippet:end\n", "var a int\n"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := shown(c.source)
			if err != nil || got != c.want {
				t.Errorf("shown = %q, %v, want %q", got, err, c.want)
			}
		})
	}
	if _, err := shown("// snippet:begin\n"); err == nil {
		t.Error("a snippet without an end is accepted")
	}
}

// firstDifference says where two texts part.
func firstDifference(got, want string) string {
	gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(gotLines), len(wantLines)) {
		if gotLines[i] != wantLines[i] {
			return fmt.Sprintf("line %d is %q, want %q", i+1, gotLines[i], wantLines[i])
		}
	}
	return fmt.Sprintf("it has %d lines, want %d", len(gotLines), len(wantLines))
}
