package programtest

import "testing"

// ending records how a test was ended.
type ending struct {
	testing.TB
	how string
}

func (e *ending) Helper()               {}
func (e *ending) Skip(...any)           { e.how = "skipped" }
func (e *ending) Fatalf(string, ...any) { e.how = "failed" }

func TestAMissingProgramEndsTheTest(t *testing.T) {
	const missing = "no-such-program"
	for _, c := range []struct {
		variable string
		names    []string
		how      string
	}{
		{"", []string{missing}, "skipped"},
		{"required", []string{missing}, "failed"},
		{"required", []string{missing, "sh"}, ""},
	} {
		t.Setenv(required, c.variable)
		e := new(ending)
		if path := Find(e, "nothing", c.names...); e.how != c.how || (path == "") != (c.how != "") {
			t.Errorf("%s=%s: of %q it finds %q, and the test is ended by %q, want %q", required, c.variable, c.names, path, e.how, c.how)
		}
	}
}
