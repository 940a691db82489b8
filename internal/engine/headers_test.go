package engine

import "testing"

func TestAFollowUpInheritsNoTick(t *testing.T) {
	t.Parallel()
	for of, want := range map[string]string{
		``: "", `{"a":"b"}`: `{"a":"b"}`, `{"schedule":"s"}`: `{"schedule":"s"}`, `{"scheduled_for":"noon"}`: `{"scheduled_for":"noon"}`,
		`{"schedule":"s", "scheduled_for":"noon"}`:               "",
		`{"a":"\u003c", "schedule":"s", "scheduled_for":"noon"}`: `{"a":"\u003c"}`,
	} {
		got := InheritedHeaders([]byte(of))
		if (got == nil) != (want == "") || got != nil && *got != want {
			t.Errorf("of %s: got %v, want %q", of, got, want)
		}
	}
}
