package main

import (
	"testing"

	"github.com/posthaste-dev/posthaste/internal/mutants"
)

func TestOnlyTheExpectedFailureCatchesAMutant(t *testing.T) {
	t.Parallel()
	check := mutants.Check{Says: "took effect"}
	for name, c := range map[string]struct {
		end    ending
		caught bool
	}{
		"it passes":                            {ending{code: 0, output: "ok"}, false},
		"it passes and says it all the same":   {ending{code: 0, output: "took effect"}, false},
		"it fails with the expected words":     {ending{code: 1, output: "--- FAIL\n took effect = true"}, true},
		"it panics with the expected words":    {ending{code: 2, output: "panic: took effect"}, true},
		"it fails because of something else":   {ending{code: 1, output: "connection refused"}, false},
		"it comes to no end":                   {ending{code: -1, timeout: true}, false},
		"it is cut off after it has said it":   {ending{code: -1, timeout: true, output: "took effect"}, false},
		"it ends as well as its time, at once": {ending{code: 0, timeout: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.end.caught(check); (err == nil) != c.caught {
				t.Errorf("caught = %t (%v), want %t", err == nil, err, c.caught)
			}
		})
	}
}

func TestPatternsAreAnchored(t *testing.T) {
	t.Parallel()
	for test, want := range map[string]string{
		"TestFence":              "^TestFence$",
		"TestFence/succeed":      "^TestFence$/^succeed",
		"TestFence/succeed/late": "^TestFence$/^succeed/^late",
	} {
		if got := pattern(test); got != want {
			t.Errorf("pattern(%q) = %q, want %q", test, got, want)
		}
	}
}
