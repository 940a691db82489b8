package verify

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The page on what is proved says of every row what the code does, whatever the day
// of its last run: a run under other texts proved something else.
func TestTheProofSaysWhatTheRowsDo(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/proof.md")
	if err != nil {
		t.Fatal(err)
	}
	type line struct{ row, tier, fault string }
	var want, got []line
	for _, row := range Scorecard() {
		for _, tier := range row.Tiers {
			want = append(want, line{row.Name, string(tier), cell(row.Fault)})
		}
	}
	listed := regexp.MustCompile(`(?m)^\| (?:\[(\w+)\]\(#\S+\)|(\w+)) \| ([PS]) \| .*? \| (.*) \|[^|]*\|[^|]*\|$`)
	for _, m := range listed.FindAllStringSubmatch(string(page), -1) {
		got = append(got, line{m[1] + m[2], m[3], m[4]})
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(line{})); diff != "" {
		t.Errorf("the table of docs/proof.md (-the rows +the page):\n%s", diff)
	}

	sections := regexp.MustCompile(`(?ms)^## (\w+), tier ([PS])$.*?^- Pass: .*?\n`).FindAllStringSubmatch(string(page), -1)
	if n := strings.Count(string(page), ", tier "); n != len(sections) {
		t.Errorf("%d sections were read of %d", len(sections), n)
	}
	for _, m := range sections {
		rows, err := Find(Tier(m[2]), m[1])
		if err != nil {
			t.Errorf("docs/proof.md has a section of a row that is not there: %v", err)
			continue
		}
		r := newRecord(rows[0], Options{Tier: Tier(m[2])})
		if diff := cmp.Diff(r.texts(), m[0]); diff != "" {
			t.Errorf("the section of %s, tier %s, in docs/proof.md (-the row +the page):\n%s", m[1], m[2], diff)
		}
	}
}
