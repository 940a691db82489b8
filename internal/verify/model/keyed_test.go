package model_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/verify/model"
)

// After every one of some thousand operations on the jobs of a few keys, all that is
// promised of keys holds: no key runs more than its limit, nobody overtakes in a
// line, nothing is blocked that could run, what is replaced never runs, depths are
// counted right, and whatever happened, everything can be brought to an end.
func TestKeysKeepTheirPromises(t *testing.T) {
	t.Parallel()
	want := wantOps(t, 2_000)
	m := model.NewKeyed(onlyOurs(t))
	for m.Ops() < want {
		rapid.Check(t, func(t *rapid.T) {
			if m.Ops() < want {
				play(t, m)
			}
		})
	}
	t.Logf("%d operations, each followed by a look at everything", m.Ops())
}
