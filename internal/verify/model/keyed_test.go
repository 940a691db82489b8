package model_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/verify/model"
)

// After each of some thousand operations on the jobs of a few keys, all promises of keys hold: no key runs more jobs
// than its limit, ordered jobs run in order, no job is blocked that could run, replaced jobs never run, depths are
// counted right, and all jobs can be completed in the end.
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
