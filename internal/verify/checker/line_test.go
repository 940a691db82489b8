package checker

import (
	"slices"
	"testing"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// step is a move of a job, at its second.
type step struct {
	second   int
	job      string
	from, to outbox.Status
}

func movesOf(steps ...step) (moves []Move) {
	for _, s := range steps {
		moves = append(moves, Move{Job: s.job, From: s.from, To: s.to, At: noon.Add(time.Duration(s.second) * time.Second)})
	}
	return moves
}

// lived is the life of a job that fails once, and waits for its retry from second 2 to second 6.
var lived = []step{
	{0, "1", "", outbox.Pending},
	{1, "1", outbox.Pending, outbox.Running},
	{2, "1", outbox.Running, outbox.Retrying},
	{6, "1", outbox.Retrying, outbox.Running},
	{8, "1", outbox.Running, outbox.Succeeded},
}

// In the cases that want one overtaken job, job 2 overtakes job 1, or moves are missing.
func TestTheLineFindsWhoOvertakes(t *testing.T) {
	for name, c := range map[string]struct {
		first, second   []step
		overtaken, held int
	}{
		"in order":                  {lived, []step{{3, "2", "", outbox.Pending}, {9, "2", outbox.Pending, outbox.Running}, {10, "2", outbox.Running, outbox.Succeeded}}, 0, 1},
		"stored later":              {lived, []step{{7, "2", "", outbox.Pending}, {9, "2", outbox.Pending, outbox.Running}}, 0, 0},
		"while it waits to retry":   {lived, []step{{0, "2", "", outbox.Pending}, {3, "2", outbox.Pending, outbox.Running}, {4, "2", outbox.Running, outbox.Succeeded}}, 1, 1},
		"while it runs again":       {lived, []step{{3, "2", "", outbox.Pending}, {7, "2", outbox.Pending, outbox.Running}}, 1, 1},
		"from the start":            {lived, []step{{0, "2", "", outbox.Pending}, {0, "2", outbox.Pending, outbox.Running}}, 1, 1},
		"the first is never closed": {lived[:4], []step{{7, "2", "", outbox.Pending}, {9, "2", outbox.Pending, outbox.Running}}, 1, 0},
		"neither is known":          {nil, []step{{0, "2", "", outbox.Pending}}, 1, 0},
	} {
		lives, err := Lives(func(yield func(Move, error) bool) {
			for _, m := range movesOf(slices.Concat(c.first, c.second)...) {
				if !yield(m, nil) {
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		overtaken, held := Line([]string{"1", "2"}, lives)
		if len(overtaken) != c.overtaken || len(held) != c.held {
			t.Errorf("%s: overtaken %v, held up by retries %v, want %d and %d", name, overtaken, held, c.overtaken, c.held)
		}
	}
}

// A lapsed lease is not a failure of the job.
func TestARetryIsNoLapsedLease(t *testing.T) {
	moves := movesOf(lived...)
	for i := range moves[2:] {
		moves[2+i].LostLeases = 1
	}
	lives, err := Lives(func(yield func(Move, error) bool) {
		for _, m := range moves {
			if !yield(m, nil) {
				return
			}
		}
	})
	if err != nil || len(lives["1"].Retries) != 0 {
		t.Errorf("lives are %+v, %v, want no retries", lives["1"], err)
	}
}
