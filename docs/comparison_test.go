package docs_test

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// comparisons are the pages that compare us with others. The first two columns of the table are what is compared, and
// how it is here.
var comparisons = []struct {
	page    string
	columns int // of the table that compares
	rows    int // it has at least so many
}{
	{"why/comparison.md", 5, 10},
	{"why/job-queues.md", 6, 20},
}

func comparison(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// What others do changes. A page has one date, that of its oldest row, which it states: 180 days after the first of
// that month somebody has to read every row against the new versions, and change the month.
func TestTheComparisonIsOfThisHalfYear(t *testing.T) {
	t.Parallel()
	dated := regexp.MustCompile(`Every row was written in (\w+ \d{4}), from code, documentation and issues of the versions`)
	for _, c := range comparisons {
		t.Run(c.page, func(t *testing.T) {
			t.Parallel()
			found := dated.FindStringSubmatch(strings.Join(strings.Fields(comparison(t, c.page)), " "))
			if found == nil {
				t.Fatal("the page does not say when it was written, and of which versions")
			}
			written, err := time.Parse("January 2006", found[1])
			if err != nil {
				t.Fatal(err)
			}
			if time.Since(written) > 180*24*time.Hour {
				t.Errorf("its rows are of %s: compare each with the versions that there are now", found[1])
			}
		})
	}
}

var (
	sourced  = regexp.MustCompile(`\[([A-Z]\d+)\]`)
	source   = regexp.MustCompile(`(?m)^- \[([A-Z]\d+)\] (.+)$`)
	resolved = regexp.MustCompile(`(?m)^\[([A-Z]\d+)\]: https://\S+$`)
	// ofVersion is a version, a commit or a date: without one nobody can say later what was read.
	ofVersion = regexp.MustCompile("\\d\\.\\d|commit [0-9a-f]{7}|20\\d\\d|PostgreSQL \\d+|`main`")
)

// unsourced are the cells that need no source, because they state that there is none.
var unsourced = []string{"not documented", "not found in its documentation"}

// Each cell about another project names the source that it was read in, and each source is listed with its version,
// and leads there.
func TestTheComparisonNamesItsSources(t *testing.T) {
	t.Parallel()
	for _, c := range comparisons {
		t.Run(c.page, func(t *testing.T) {
			t.Parallel()
			namesItsSources(t, comparison(t, c.page), c.columns, c.rows)
		})
	}
}

func namesItsSources(t *testing.T, page string, columns, atLeast int) {
	t.Helper()
	text, list, listed := strings.Cut(page, "\n## Sources\n")
	if !listed {
		t.Fatal("the page does not list its sources")
	}
	rows := 0
	for line := range strings.Lines(text) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ") // of the header the first, which is empty, is trimmed
		if !strings.HasPrefix(line, "|") || len(cells) != columns || strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows++
		for i, cell := range cells[2:] {
			if !sourced.MatchString(cell) && !slices.Contains(unsourced, strings.TrimSpace(cell)) {
				t.Errorf("%q, column %d, names no source: %q", cells[0], i+3, cell)
			}
		}
	}
	if rows < atLeast {
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
