package operator_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/operator"
	"github.com/posthaste-dev/posthaste/outbox"
)

// Whatever comes and closes while a list is paged through, no job is on two pages, and none that was there at the
// beginning is missing.
func TestPagesOfAListThatMoves(t *testing.T) {
	t.Parallel()
	o, db := newRig(t)
	round := 0
	rapid.Check(t, func(t *rapid.T) {
		round++
		kind := fmt.Sprintf("k%d", round)
		insert := func(n int) (ids []outbox.ID) {
			for range n {
				id, err := outbox.Enqueue(t.Context(), db, outbox.Raw{KindName: kind, Payload: []byte("{}")}, outbox.Options{})
				if err != nil {
					t.Fatal(err)
				}
				ids = append(ids, id)
			}
			return ids
		}
		initial := insert(rapid.IntRange(0, 25).Draw(t, "jobs"))
		open := slices.Clone(initial)
		seen := map[outbox.ID]int{}
		f := operator.Filter{Kind: kind, Limit: rapid.IntRange(1, 7).Draw(t, "limit")}
		for {
			page, err := o.Page(t.Context(), f)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range page.Jobs {
				seen[j.ID]++
			}
			if f.Before = page.Next; f.Before.IsZero() {
				break
			}
			open = append(open, insert(rapid.IntRange(0, 3).Draw(t, "new"))...)
			for range rapid.IntRange(0, min(3, len(open))).Draw(t, "closed") {
				i := rapid.IntRange(0, len(open)-1).Draw(t, "which")
				if _, err := o.Cancel(t.Context(), open[i]); err != nil {
					t.Fatal(err)
				}
				open = slices.Delete(open, i, i+1)
			}
		}
		for _, id := range initial {
			if seen[id] == 0 {
				t.Errorf("job %s is on no page", id)
			}
		}
		for id, n := range seen {
			if n > 1 {
				t.Errorf("job %s is on %d pages", id, n)
			}
		}
	})
}
