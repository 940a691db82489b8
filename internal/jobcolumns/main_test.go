package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// close_jobs is applied as it stands, so nothing spells its lists out.
func TestCloseJobsKeepsEveryColumn(t *testing.T) {
	text, err := os.ReadFile("../../migrations/functions/close_jobs.sql")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "INSERT INTO outbox.history AS h (")
	names, rest, _ := strings.Cut(rest, ")")
	_, rest, _ = strings.Cut(rest, "SELECT ")
	values, _, found := strings.Cut(rest, "FROM closed")
	if !found {
		t.Fatal("close_jobs inserts nothing into the history")
	}
	got := split(names)
	want := split("status, " + list(isKept, column.historyName))
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("close_jobs stores %s, want %s", got, want)
	}
	for _, c := range columns {
		if c.history != "" && !strings.Contains(values, c.history) {
			t.Errorf("close_jobs does not take %s", c.history)
		}
	}
}

func split(list string) []string {
	fields := strings.Split(list, ",")
	for i := range fields {
		fields[i] = strings.TrimSpace(fields[i])
	}
	return fields
}

// What a statement says in double braces is known, and each list has the length of its columns.
func TestListsThatBelongTogetherAreAsLong(t *testing.T) {
	for names, values := range map[string]string{"{{stored}}": "{{given}}", "{{history}}": `{{closed "status"}}`} {
		a, b := count(t, names), count(t, values)
		if a != b || a < 20 {
			t.Errorf("%s has %d columns, %s has %d", names, a, values, b)
		}
	}
	if _, err := expand("x", "SELECT {{unknown}}"); err == nil {
		t.Error("a list that there is not is no error")
	}
}

// count is how many elements a list has on the outermost level.
func count(t *testing.T, text string) int {
	t.Helper()
	out, err := expand("x", text)
	if err != nil {
		t.Fatal(err)
	}
	n, depth := 1, 0
	for _, c := range string(out) {
		switch c {
		case '(', '[':
			depth++
		case ')', ']':
			depth--
		case ',':
			if depth == 0 {
				n++
			}
		}
	}
	return n
}
