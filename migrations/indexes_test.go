package migrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every statement that stores a job opens every index of outbox.jobs, so each index has a
// comment that names a statement that reads it, and every name is that of a statement.
func TestEachIndexOfJobsNamesTheStatementThatNeedsIt(t *testing.T) {
	t.Parallel()
	statements := map[string]bool{}
	for _, pattern := range []string{"../queries/*.sql", "functions/*.sql"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			for _, name := range regexp.MustCompile(`-- name: (\w+)|FUNCTION outbox\.(\w+)\(`).FindAllStringSubmatch(read(t, file), -1) {
				statements[name[1]+name[2]] = true
			}
		}
	}
	files, err := filepath.Glob("0*.sql")
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, file := range files {
		text += read(t, file)
	}
	const index = `((?:--[^\n]*\n)*)CREATE (?:UNIQUE )?INDEX (\w+) ON outbox\.jobs `
	found := regexp.MustCompile(index).FindAllStringSubmatch(text, -1)
	if n := strings.Count(text, " ON outbox.jobs "); n != len(found) || n == 0 {
		t.Fatalf("found %d of %d indexes", len(found), n)
	}
	for _, match := range found {
		comment, name := match[1], match[2]
		named := 0
		for _, word := range regexp.MustCompile(`\b(?:[A-Z][a-z]+[A-Z]\w+|[a-z]+_[a-z]+)\b`).FindAllString(comment, -1) {
			switch {
			case statements[word]:
				named++
			case !strings.HasPrefix(word, "jobs_"):
				t.Errorf("%s: %q is no statement of queries/ and no function of functions/", name, word)
			}
		}
		if named == 0 {
			t.Errorf("%s: its comment names no statement that reads it", name)
		}
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
