package docs_test

import (
	"os"
	"regexp"
	"testing"
	"time"
)

// What others do changes. The comparison says when it was written, and of which versions: after half a year somebody
// has to read it against their new ones, and change the month.
func TestTheComparisonIsOfThisHalfYear(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("why/comparison.md")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`It was written in (\w+ \d{4}), from code, documentation and issues of the versions`).FindSubmatch(page)
	if found == nil {
		t.Fatal("the page does not say when it was written, and of which versions")
	}
	written, err := time.Parse("January 2006", string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	if month := written.AddDate(0, 1, 0); time.Since(month) > 180*24*time.Hour {
		t.Errorf("it is of %s: compare it with the versions that there are now", found[1])
	}
}
