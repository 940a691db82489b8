package main

import (
	"os"
	"testing"
)

// close_jobs is applied as it stands, and keeps the same columns of a job as all statements do.
func TestCloseJobsIsUpToDate(t *testing.T) {
	text, err := os.ReadFile("../../" + closeFile)
	if err != nil {
		t.Fatal(err)
	}
	want, err := closeJobs(string(text))
	if err != nil || string(text) != want {
		t.Errorf("%s is not up to date, run make generate (%v)", closeFile, err)
	}
	if _, err := closeJobs("SELECT 1"); err == nil {
		t.Error("a function that inserts nothing is no error")
	}
}

// Every name in double braces is known, and each list is as long as its list of columns.
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

// count returns how many elements a list has on the outermost level.
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
