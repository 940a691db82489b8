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
	if diff := cmp.Diff(cursor{top: 17, holes: []hole{{12, 12, 0, 0}, {14, 16, 0, 0}}}, c, compare); diff != "" {
		t.Fatalf("after 11, 13 and 17 (-want +got):\n%s", diff)
	}
	c = c.numbered(100)
	filled := c.after([]int64{15, 18, 20})
	if diff := cmp.Diff(cursor{top: 20, holes: []hole{{12, 12, 100, -1}, {14, 14, 100, -1}, {16, 16, 100, -1}, {19, 19, 0, 0}}}, filled, compare); diff != "" {
		t.Fatalf("after 15, 18 and 20 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(cursor{top: 17, holes: []hole{{12, 12, 100, -1}, {14, 16, 100, -1}}}, c, compare); diff != "" {
		t.Fatalf("the cursor before has changed (-want +got):\n%s", diff)
	}
}

func TestAHoleIsLookedAtWhenATransactionHasEnded(t *testing.T) {
	c := cursor{top: 20, holes: []hole{{12, 12, 100, -1}, {14, 16, 0, 0}, {19, 19, 100, 2}}}
	look := func(text string) (looked []int64, left []int64, examined func(int64) cursor) {
		now, err := parseSnapshot(text)
		if err != nil {
			t.Fatal(err)
		}
		looked, _ = cursor{holes: c.mayBeFilled(now)}.bounds()
		left, _ = c.looked(now, 20).bounds()
		return looked, left, func(up int64) cursor { return c.looked(now, up) }
	}
	for text, want := range map[string]struct{ looked, left []int64 }{
		"90:120:90,95,110": {[]int64{12, 14}, []int64{12, 14, 19}},     // as at the last look at 19
		"90:120:90,110":    {[]int64{12, 14, 19}, []int64{12, 14, 19}}, // 95 has ended
		"101:120:101":      {[]int64{12, 14, 19}, []int64{14}},         // nobody is left
		"98:98:":           {[]int64{12, 14}, []int64{12, 14, 19}},     // 98 and 99 may run: the server does not say
		"100:100:":         {[]int64{12, 14, 19}, []int64{14}},
	} {
		looked, left, _ := look(text)
		if !slices.Equal(looked, want.looked) || !slices.Equal(left, want.left) {
			t.Errorf("with %s: looked at %v and left %v, want %v and %v", text, looked, left, want.looked, want.left)
		}
	}
	_, _, upTo := look("101:120:101")
	if lows, _ := upTo(18).bounds(); !slices.Equal(lows, []int64{14, 19}) {
		t.Errorf("a look up to 18 leaves %v, want 14 and 19", lows)
	}
	for _, text := range []string{"", "1", "1:2", "1:b:", "1:2:c"} {
		if _, err := parseSnapshot(text); err == nil {
			t.Errorf("snapshot %q is understood", text)
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
			var waits []int64 // some that it has passed, some that it has not, in any order, and again
			for p := range published {
				if p <= c.top && rapid.IntRange(0, 9).Draw(t, "") == 0 {
					waits = append(waits, p, p)
					delete(published, p)
				}
			}
			c = c.withHoles(append(waits, c.top+1))
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

// Several transactions may fill a hole. It stays until the last of them has ended, however often it was looked at.
func TestAHoleWaitsForAllTransactions(t *testing.T) {
	t.Parallel()
	c := cursor{}.after([]int64{1, 3}).numbered(100)
	for _, running := range [][]int64{{5, 6, 7}, {5, 6}, {5}} {
		if c = c.looked(snapshot{next: 100, running: running}, 3); !c.isHole(2) {
			t.Fatalf("the hole is closed while %d run", running)
		}
	}
	if c = c.looked(snapshot{next: 100}, 3); c.isHole(2) {
		t.Error("the hole stays although nobody can fill it")
	}
}
