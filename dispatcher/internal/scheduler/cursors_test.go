package scheduler

import (
	"bytes"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/outbox"
)

var priorities = rapid.Custom(func(t *rapid.T) int16 {
	return rapid.OneOf(
		rapid.SampledFrom([]int16{math.MinInt16, math.MinInt16 + 1, -1, 0, 1, math.MaxInt16 - 1, math.MaxInt16}),
		rapid.Int16(),
	).Draw(t, "priority")
})

// someTenants draws a few tenants, neighbours and both ends among them.
var someTenants = rapid.Custom(func(t *rapid.T) outbox.ID {
	id := outbox.ID{15: byte(rapid.IntRange(0, 5).Draw(t, "low"))}
	switch rapid.IntRange(0, 3).Draw(t, "where") {
	case 0:
		id = outbox.ID(bytes.Repeat([]byte{0xff}, 16))
		id[15] -= byte(rapid.IntRange(0, 2).Draw(t, "below the last"))
	case 1:
		id[14], id[15] = byte(rapid.IntRange(0, 1).Draw(t, "carry")), 0xff
	}
	return id
})

func candidate(tenant outbox.ID, priority int16, runAt time.Time, id byte) Leased {
	return Leased{Flow: Flow{tenant, priority}, At: Position{runAt, outbox.ID{15: id}}}
}

// Every possible flow has a cursor or lies in exactly one gap.
func TestGapsCoverWhatHasNoCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var cs cursors
		for range rapid.IntRange(0, 40).Draw(t, "cursors") {
			cs.add(Flow{someTenants.Draw(t, "tenant"), priorities.Draw(t, "priority")}, time.Now(), outbox.ID{})
		}
		served := someTenants.Draw(t, "served")
		g := cs.gaps(served)
		for range 50 {
			f := Flow{someTenants.Draw(t, "tenant"), priorities.Draw(t, "priority")}
			covered := 0
			if cs.get(f) != nil {
				covered++
			}
			for i := range g.From {
				if bytes.Compare(g.From[i][:], f.Tenant[:]) <= 0 && bytes.Compare(f.Tenant[:], g.To[i][:]) <= 0 {
					covered++
				}
			}
			for i := range g.Of {
				if g.Of[i] == f.Tenant && g.Lowest[i] <= int32(f.Priority) && int32(f.Priority) <= g.Highest[i] {
					covered++
				}
			}
			if covered != 1 {
				t.Fatalf("%v is covered %d times, want once", f, covered)
			}
		}
		for i := range g.From {
			if bytes.Compare(g.From[i][:], g.To[i][:]) > 0 {
				t.Errorf("the gap from %s to %s is empty", g.From[i], g.To[i])
			}
		}
		// The first gap is the first behind the tenant that was served last.
		for i := range g.From {
			if after := bytes.Compare(g.From[i][:], served[:]) >= 0; after && bytes.Compare(g.From[0][:], served[:]) < 0 {
				t.Errorf("gap %d is behind the tenant that was served, the first one is not", i)
			}
		}
	})
}

func TestCursorsAreSortedAndBounded(t *testing.T) {
	var cs cursors
	now := time.Now()
	for n := range 2 * maxCursors {
		c := cs.add(Flow{outbox.ID{0: byte(n * 7), 1: byte(n >> 8)}, int16(n % 3)}, now.Add(time.Duration(n)), outbox.ID{})
		c.state = drained
	}
	if len(cs.sorted) != maxCursors {
		t.Errorf("%d cursors, want %d", len(cs.sorted), maxCursors)
	}
	if !slices.IsSortedFunc(cs.sorted, func(a, b *Cursor) int { return byFlow(a, b.Flow) }) {
		t.Error("the cursors are not in order")
	}
}

// Of the cursors without due jobs the least recently used one is forgotten; if all have due jobs, the one whose turn
// comes last.
func TestWhichCursorIsForgotten(t *testing.T) {
	now := time.Now()
	full := func(state flowState) *cursors {
		var cs cursors
		for n := range maxCursors {
			cs.add(Flow{Tenant: outbox.ID{0: 1, 1: byte(n >> 8), 2: byte(n)}}, now.Add(time.Duration(n)), outbox.ID{}).state = state
		}
		return &cs
	}
	one := Flow{Tenant: outbox.ID{0: 2}}
	cs := full(drained)
	cs.sorted[7].used = now.Add(-time.Hour)
	cs.sorted[3].used, cs.sorted[3].state = now.Add(-2*time.Hour), due
	oldest := cs.sorted[7].Flow
	if cs.add(one, now, outbox.ID{}); cs.get(oldest) != nil || cs.get(one) == nil {
		t.Error("another one than that which was idle longest has been forgotten")
	}
	cs = full(due)
	last := cs.sorted[99].Flow // served last: its next turn is the last one
	if cs.add(one, now, last.Tenant); cs.get(last) != nil || cs.get(one) == nil {
		t.Error("one has been forgotten whose turn comes before that of others")
	}
}

// Cursors only move forward, and not past jobs that go back.
func TestCursorsMoveForward(t *testing.T) {
	var cs cursors
	now := time.Now()
	a, b := outbox.ID{1}, outbox.ID{2}
	cs.add(Flow{a, 0}, now, outbox.ID{})
	cs.add(Flow{b, 0}, now, outbox.ID{})
	back := candidate(a, 0, now.Add(time.Minute), 9)
	back.GoesBack = true
	cs.claimed([]Leased{candidate(a, 0, now, 5), candidate(a, 0, now, 3), back, candidate(b, 0, now.Add(-time.Hour), 1), candidate(b, 7, now, 1)}, now)
	if got, want := cs.get(Flow{a, 0}).At, (Position{now, outbox.ID{15: 5}}); got != want {
		t.Errorf("cursor at %v, want %v", got, want)
	}
	if got, want := cs.get(Flow{b, 0}).At, (Position{now.Add(-time.Hour), outbox.ID{15: 1}}); got != want {
		t.Errorf("cursor at %v, want %v", got, want)
	}
	if cs.get(Flow{b, 7}) != nil {
		t.Error("a claim has made a cursor")
	}
}

// A claim from the front that gets thousands of jobs is slow because of them, not because of what it reads before them:
// the next one begins there, too.
func TestManyJobsMakeNoClaimExpensive(t *testing.T) {
	s := New(64)
	now := time.Now()
	for range 5 {
		s.plain.cost(true, now, 60*time.Millisecond, 2000)
	}
	if !s.plain.front.allows(now) {
		t.Error("no claim from the front after some that got 2000 jobs in 60 ms each")
	}
	for range 2 {
		s.plain.cost(true, now, 60*time.Millisecond, 10)
	}
	if s.plain.front.allows(now) {
		t.Error("a claim from the front at once after two that took 60 ms for ten jobs")
	}
}
