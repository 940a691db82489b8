package verify

import (
	"context"
	"errors"
	"testing"
)

// A run passes if it finished, checked something, and found no violation.
func TestWhatPasses(t *testing.T) {
	t.Parallel()
	holds := func(r *Run) { r.Expect("jobs lost", 0, "=", 0) }
	for name, c := range map[string]struct {
		expect      func(*Run)
		err         error
		interrupted bool
		passed      bool
	}{
		"all holds":                     {holds, nil, false, true},
		"something does not":            {func(r *Run) { holds(r); r.Expect("jobs", 1, ">=", 2) }, nil, false, false},
		"nothing was expected":          {func(*Run) {}, nil, false, false},
		"it could not be finished":      {holds, errors.New("the server is away"), false, false},
		"it is not possible here":       {holds, notPossible("no cgroup"), false, false},
		"it was broken off, and held":   {holds, nil, true, false},
		"it was broken off by an error": {holds, context.Canceled, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			if c.interrupted {
				interrupt()
			}
			r := &Run{record: newRecord(Row{Name: "Z1"}, Options{})}
			c.expect(r)
			r.conclude(ctx, c.err)
			if r.record.Passed != c.passed {
				t.Errorf("passed = %t with the error %q, want %t", r.record.Passed, r.record.Error, c.passed)
			}
			if c.interrupted && r.record.Error == "" {
				t.Error("the record does not say that it was broken off")
			}
		})
	}
}
