package docs_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// comparison is the page that compares the relay with others.
func comparison(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile("why/comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// What others do changes. The comparison says when it was written, and of which versions: after half a year somebody
// has to read it against their new ones, and change the month.
func TestTheComparisonIsOfThisHalfYear(t *testing.T) {
	t.Parallel()
	found := regexp.MustCompile(`It was written in (\w+ \d{4}), from code, documentation and issues of the versions`).FindStringSubmatch(comparison(t))
	if found == nil {
		t.Fatal("the page does not say when it was written, and of which versions")
	}
	written, err := time.Parse("January 2006", found[1])
	if err != nil {
		t.Fatal(err)
	}
	if month := written.AddDate(0, 1, 0); time.Since(month) > 180*24*time.Hour {
		t.Errorf("it is of %s: compare it with the versions that there are now", found[1])
	}
}

var (
	sourced  = regexp.MustCompile(`\[([A-Z]\d+)\]`)
	source   = regexp.MustCompile(`(?m)^- \[([A-Z]\d+)\] (.+)$`)
	resolved = regexp.MustCompile(`(?m)^\[([A-Z]\d+)\]: https://\S+$`)
	// ofVersion is a version, a commit or a date: without one nobody can say later what was read.
	ofVersion = regexp.MustCompile("\\d\\.\\d|commit [0-9a-f]{7}|20\\d\\d|PostgreSQL \\d+|`main`")
)

// Each cell about another project names the source that it was read in, and each source is listed with its version,
// and leads there.
func TestTheComparisonNamesItsSources(t *testing.T) {
	t.Parallel()
	text, list, listed := strings.Cut(comparison(t), "\n## Sources\n")
	if !listed {
		t.Fatal("the page does not list its sources")
	}
	rows := 0
	for line := range strings.Lines(text[:strings.Index(text, "\n## ")]) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if !strings.HasPrefix(line, "|") || len(cells) != 5 || strings.HasPrefix(cells[0], "---") || cells[0] == "this relay" {
			continue
		}
		rows++
		for i, cell := range cells[2:] {
			if !sourced.MatchString(cell) && strings.TrimSpace(cell) != "not documented" {
				t.Errorf("%q, column %d, names no source: %q", cells[0], i+3, cell)
			}
		}
	}
	if rows < 10 {
		t.Errorf("%d rows: this looks at the wrong place", rows)
	}
	names := func(found [][]string) (all []string) {
		for _, m := range found {
			all = append(all, m[1])
		}
		slices.Sort(all)
		return slices.Compact(all)
	}
	used, described, leads := names(sourced.FindAllStringSubmatch(text, -1)), names(source.FindAllStringSubmatch(list, -1)), names(resolved.FindAllStringSubmatch(list, -1))
	if !slices.Equal(used, described) || !slices.Equal(used, leads) {
		t.Errorf("the text names %v, the list has %v, and these have an address: %v", used, described, leads)
	}
	for item := range strings.SplitSeq(list, "\n- ") {
		item, _, _ = strings.Cut(item, "\n\n")
		if sourced.MatchString(item) && !ofVersion.MatchString(item) {
			t.Errorf("a source has no version: %s", item)
		}
	}
}
