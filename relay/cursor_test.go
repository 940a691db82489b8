package relay

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

var compare = cmp.AllowUnexported(cursor{}, hole{})

func TestACursorRemembersWhatItHasNotSeen(t *testing.T) {
	c := cursor{top: 10}
	c = c.after([]int64{11, 13, 17})
	if diff := cmp.Diff(cursor{17, []hole{{12, 12, 0}, {14, 16, 0}}}, c, compare); diff != "" {
		t.Fatalf("after 11, 13 and 17 (-want +got):\n%s", diff)
	}
	c = c.numbered(100)
	filled := c.after([]int64{15, 18, 20})
	if diff := cmp.Diff(cursor{20, []hole{{12, 12, 100}, {14, 14, 100}, {16, 16, 100}, {19, 19, 0}}}, filled, compare); diff != "" {
		t.Fatalf("after 15, 18 and 20 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(cursor{17, []hole{{12, 12, 100}, {14, 16, 100}}}, c, compare); diff != "" {
		t.Fatalf("the cursor before has changed (-want +got):\n%s", diff)
	}
}

func TestAHoleIsClosedWhenNobodyCanFillIt(t *testing.T) {
	c := cursor{20, []hole{{12, 12, 100}, {14, 16, 0}, {19, 19, 100}}}
	for _, test := range []struct {
		oldest, examined int64
		left             []hole
	}{
		{99, 20, c.holes},      // 99 may still run
		{100, 11, c.holes},     // not looked at
		{100, 12, c.holes[1:]}, // the look ended there
		{100, 20, []hole{{14, 16, 0}}},
	} {
		if diff := cmp.Diff(test.left, c.closed(test.oldest, test.examined).holes, compare); diff != "" {
			t.Errorf("oldest %d, examined up to %d (-want +got):\n%s", test.oldest, test.examined, diff)
		}
	}
}

// Whatever is published in whatever portions, the cursor is the set of what was published.
func TestACursorIsASetOfPositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 60
		c, published := cursor{}, map[int64]bool{}
		for range rapid.IntRange(1, 12).Draw(t, "portions") {
			var portion []int64
			for p := int64(1); p <= most; p++ {
				if !published[p] && rapid.IntRange(0, 4).Draw(t, "") == 0 {
					portion = append(portion, p)
				}
			}
			for _, p := range portion {
				published[p] = true
			}
			if rapid.Bool().Draw(t, "numbered") {
				c = c.numbered(7)
			}
			c = c.after(portion)
		}
		lows, highs := c.bounds()
		for p := int64(1); p <= most; p++ {
			atHole := slices.ContainsFunc(c.holes, func(h hole) bool { return h.low <= p && p <= h.high })
			if got := p <= c.top && !atHole; got != published[p] {
				t.Fatalf("position %d counts as published: %v, want %v, by %+v", p, got, published[p], c)
			}
		}
		for i := 1; i < len(lows); i++ {
			if lows[i] <= highs[i-1] {
				t.Fatalf("holes are not in order: %+v", c)
			}
		}
		if again := cursorOf(c.top, lows, highs); again.positions() != c.positions() || again.top != c.top {
			t.Fatalf("stored and read: %+v, want %+v", again, c)
		}
	})
}
