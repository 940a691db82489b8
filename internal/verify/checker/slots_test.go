package checker

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/posthaste-dev/posthaste/outbox"
)

func TestSlotsTellHowLongAPromotionTook(t *testing.T) {
	at := func(from, until int) Span {
		return Span{From: noon.Add(time.Duration(from) * time.Second), Until: noon.Add(time.Duration(until) * time.Second)}
	}
	const pending, blocked, running, succeeded = outbox.Pending, outbox.Blocked, outbox.Running, outbox.Succeeded
	taken := []step{{0, "1", "", pending}, {1, "1", pending, running}, {1, "2", "", pending}, {2, "2", pending, blocked}}
	for name, c := range map[string]struct {
		limit int
		moves []step
		want  Slots
	}{
		"promoted and claimed": {
			1, slices.Concat(taken, []step{{4, "1", running, succeeded}, {5, "2", blocked, pending}, {8, "2", pending, running}, {9, "2", running, succeeded}}),
			Slots{Free: []Span{at(4, 5)}, Unclaimed: []Span{at(0, 1), at(1, 8)}, Promoted: 1},
		},
		"a retry frees the slot": {
			1, slices.Concat(taken, []step{{4, "1", running, outbox.Retrying}, {6, "2", blocked, pending}, {6, "2", pending, running}}),
			Slots{Free: []Span{at(4, 6)}, Unclaimed: []Span{at(0, 1), at(1, 6)}, Promoted: 1},
		},
		"a new job takes the slot": {
			1, slices.Concat(taken, []step{{4, "1", running, succeeded}, {7, "3", "", pending}, {8, "3", pending, running}, {9, "3", running, succeeded}, {11, "2", blocked, pending}}),
			Slots{Free: []Span{at(4, 7), at(9, 11)}, Unclaimed: []Span{at(0, 1), at(1, 8)}, Promoted: 1},
		},
		"blocked behind one that has just ended": {
			1,
			[]step{{0, "1", "", pending}, {0, "1", pending, running}, {1, "2", "", pending}, {2, "1", running, succeeded}, {3, "2", pending, blocked}, {5, "2", blocked, pending}},
			Slots{Free: []Span{at(3, 5)}, Unclaimed: []Span{at(0, 0)}, Promoted: 1},
		},
		"two of two, one after the other": {
			2,
			[]step{
				{0, "1", "", pending},
				{0, "2", "", pending},
				{0, "3", "", pending},
				{0, "4", "", pending},
				{1, "1", pending, running},
				{1, "2", pending, running},
				{1, "3", pending, blocked},
				{1, "4", pending, blocked},
				{2, "1", running, succeeded},
				{3, "2", running, succeeded},
				{4, "3", blocked, pending},
				{7, "4", blocked, pending},
			},
			Slots{Free: []Span{at(2, 4), at(3, 7)}, Unclaimed: []Span{at(0, 1), at(1, 1)}, Promoted: 2},
		},
		"an extended lease": {
			1, slices.Concat(taken, []step{{3, "1", running, running}, {4, "1", running, succeeded}, {5, "2", blocked, pending}}),
			Slots{Free: []Span{at(4, 5)}, Unclaimed: []Span{at(0, 1)}, Promoted: 1},
		},
	} {
		if diff := cmp.Diff(c.want, ReadSlots(c.limit, movesOf(c.moves...))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
