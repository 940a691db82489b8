package api

import (
	"net/http"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// What is taken of a trace context is what the standard takes, comes through a second
// time as it is, and does not replace the one that a job has of its own.
func FuzzTraceContext(f *testing.F) {
	const good = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for _, seed := range [][2]string{
		{good, "a=1,b=2"},
		{"cc" + good[2:] + "-what-comes", ""},
		{"ff" + good[2:], "a=1"},
		{good + "-more", "a=1"},
		{"00-00000000000000000000000000000000-b7ad6b7169203331-01", ""},
		{strings.ToUpper(good), "a=1"},
		{good, "\xff"},
		{good, "a\x00b"},
		{good + "\n", strings.Repeat("x", 600)},
		{"", "a=1"},
	} {
		f.Add(seed[0], seed[1])
	}
	ids := regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]*[1-9a-f][0-9a-f]*-[0-9a-f]*[1-9a-f][0-9a-f]*-`)
	f.Fuzz(func(t *testing.T, parent, state string) {
		got := traceOf(http.Header{"Traceparent": {parent}, "Tracestate": {state}})
		if got == (trace{}) {
			if parent == good {
				t.Errorf("with the state %q: nothing is taken", state)
			}
			return
		}
		if got.parent != parent || !ids.MatchString(parent) || len(parent) > maxTraceBytes || parent[:2] == "ff" || parent[2] != '-' || parent[35] != '-' || parent[52] != '-' {
			t.Errorf("%q is taken as %q", parent, got.parent)
		}
		if !utf8.ValidString(got.parent+got.state) || strings.ContainsRune(got.parent+got.state, 0) || len(got.state) > maxTraceBytes || got.state != "" && got.state != state {
			t.Errorf("%q with %q is taken as %+v, which a job cannot store", parent, state, got)
		}
		if again := traceOf(http.Header{"Traceparent": {got.parent}, "Tracestate": {got.state}}); again != got {
			t.Errorf("%+v becomes %+v", got, again)
		}
	})
}
