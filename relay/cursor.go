package relay

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/posthaste-dev/posthaste/outbox"
)

// A cursor is how far a sink has come in the log: every event up to top is published, except those at the holes. It is
// a value: methods return a new cursor.
//
// A hole is a run of positions that were given out but at which no event was visible. Either the transaction that took
// them is still running, or it was rolled back, or the event was visible and the broker has not accepted it. Whatever
// is visible is published at once, in the order of positions, with the events at holes before newer ones. That keeps
// the order of a key:
//
//	transaction A    locks the key, takes 7, commits
//	transaction B                                    has the lock, takes 9, commits
//	reader                    sees 8 (of another key): 7 is a hole        sees 7 and 9
//
// If the two transactions lock the same row before they publish, B's position is higher, and nobody sees 9 before 7 is
// visible. So a reader only has to look at the holes with a snapshot that is no older than the one with which it saw
// newer events.
//
// A hole is closed for good once it is certain that nobody will fill it. Each transaction has its number before it
// takes a position (by the default of outbox.events.position). So the transactions that may fill a hole have numbers
// below any number that is given out after the hole was noticed. Once all transactions below that number have ended,
// the next look at the hole that finds nothing is the last. And while as many of them run as at the last look, none of
// them has ended since, so there is nothing new to see: a transaction that is open for an hour costs no look at its
// holes.
//
// Events may share a position (see EventsAfter). They are read together, and the cursor passes the position when all of
// them are published.
//
// Separate holes are stored with each step, so their number is limited: see maxHoles and maxStored.
type cursor struct {
	top   int64
	holes []hole    // in order, separate, up to top
	topID outbox.ID // id of the event at top, by which it is recognised after a failover; zero: the database knows it
}

// hole is the positions low to high.
type hole struct {
	low, high int64
	// before is above the numbers of all transactions that may fill the hole; 0 means not yet known.
	before int64
	// running is how many of those ran shortly before the last look; -1 means no look since before became known.
	running int
}

// maxHoles limits the holes of a sink; beyond it the sink reads nothing newer and waits for the transactions. While one
// transaction stays open, each one that is rolled back leaves a hole: 50 a second make 30 000 in ten minutes. Storing
// the maximum takes 450 ms of the server and 790 kB of WAL each time, and a tenth of the holes a tenth of that: see
// storePause. In memory a look takes some milliseconds. Tests set a lower limit.
var maxHoles = 100_000

// maxStored limits the holes that are stored, which may be more than maxHoles: messages that wait for destinations are
// at holes, too, and one hole of a million positions becomes half a million holes if every other position is filled, as
// when one of two long transactions ends. Tests set a lower limit.
var maxStored = 2 * maxHoles

// past returns the cursor after events were published, whose positions do not fall. Of events that share top, topID is
// that of the one stored last: a failover loses that one first.
func (c cursor) past(published []Event) cursor {
	next := c.after(positions(published))
	var newest time.Time
	for i := len(published) - 1; i >= 0 && next.top > c.top && published[i].Position == next.top; i-- {
		if e := &published[i]; e.At.After(newest) {
			next.topID, newest = e.ID, e.At
		}
	}
	return next
}

// after returns the cursor after events were published, whose positions are in ascending order.
func (c cursor) after(published []int64) cursor {
	n, _ := slices.BinarySearch(published, c.top+1)
	next := cursor{top: c.top, holes: without(c.holes, published[:n]), topID: c.topID}
	for _, position := range published[n:] {
		if position > next.top+1 {
			next.holes = append(next.holes, hole{low: next.top + 1, high: position - 1})
		}
		next.top, next.topID = position, outbox.ID{}
	}
	return next
}

// withHoles returns the cursor with holes at some more positions, of those that it has passed.
func (c cursor) withHoles(at []int64) cursor {
	if len(at) == 0 {
		return c
	}
	at = slices.DeleteFunc(slices.Clone(at), func(position int64) bool { return position > c.top || c.isHole(position) })
	slices.Sort(at)
	at = slices.Compact(at)
	holes := append(make([]hole, 0, len(c.holes)+len(at)), c.holes...)
	for i := 0; i < len(at); {
		h := hole{low: at[i], high: at[i]}
		for i++; i < len(at) && at[i] == h.high+1; i++ {
			h.high++
		}
		holes = append(holes, h)
	}
	slices.SortFunc(holes, func(a, b hole) int { return cmp.Compare(a.low, b.low) })
	return cursor{c.top, holes, c.topID}
}

// without returns holes without some positions, which are in ascending order. The result can be appended to; holes
// itself is unchanged.
func without(holes []hole, filled []int64) []hole {
	if len(filled) == 0 {
		return slices.Clip(holes)
	}
	first, _ := slices.BinarySearchFunc(holes, filled[0], func(h hole, position int64) int {
		return cmp.Compare(h.high, position)
	})
	left := append(make([]hole, 0, len(holes)+1), holes[:first]...)
	for _, h := range holes[first:] {
		for len(filled) > 0 && filled[0] <= h.high {
			if at := filled[0]; at >= h.low {
				if at > h.low {
					left = append(left, hole{h.low, at - 1, h.before, h.running})
				}
				h.low = at + 1
			}
			filled = filled[1:]
		}
		if h.low <= h.high {
			left = append(left, h)
		}
	}
	return left
}

// numbered returns the cursor with a bound for the holes that have none: a transaction got the number xid after the
// cursor was made.
func (c cursor) numbered(xid int64) cursor {
	holes := slices.Clone(c.holes)
	for i := range holes {
		if holes[i].before == 0 {
			holes[i].before, holes[i].running = xid, -1
		}
	}
	return cursor{c.top, holes, c.topID}
}

// isNumbered reports whether all holes have a bound.
func (c cursor) isNumbered() bool {
	return !slices.ContainsFunc(c.holes, func(h hole) bool { return h.before == 0 })
}

// mayBeFilled returns the holes that may have received an event since the last look, given the running transactions.
func (c cursor) mayBeFilled(now snapshot) (holes []hole) {
	running := now.below()
	for _, h := range c.holes {
		if h.before == 0 || h.running != running(h.before) {
			holes = append(holes, h)
		}
	}
	return holes
}

// looked returns the cursor after a look, up to a position, at the holes that mayBeFilled returned. The look found
// nothing at them, so those that nobody can fill any more are closed.
func (c cursor) looked(before snapshot, examined int64) cursor {
	left := make([]hole, 0, len(c.holes))
	running := before.below()
	for _, h := range c.holes {
		if h.before != 0 && h.high <= examined {
			if h.running = running(h.before); h.running == 0 {
				continue
			}
		}
		left = append(left, h)
	}
	return cursor{c.top, left, c.topID}
}

// snapshot holds the numbers of the running transactions, in order, up to next; transactions from next on must be
// assumed to run.
type snapshot struct {
	next    int64
	running []int64
}

// runningBelow returns how many transactions below a number may be running.
func (s snapshot) runningBelow(xid int64) int {
	n, _ := slices.BinarySearch(s.running, xid)
	return n + int(max(0, xid-s.next))
}

// below returns a function that does what runningBelow does, for holes in order; it uses that holes noticed together
// have the same number.
func (s snapshot) below() func(xid int64) int {
	last, n := int64(0), 0
	return func(xid int64) int {
		if xid != last {
			last, n = xid, s.runningBelow(xid)
		}
		return n
	}
}

// parseSnapshot parses a pg_snapshot, such as 10:20:10,14,15.
func parseSnapshot(text string) (s snapshot, err error) {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return s, fmt.Errorf("pg_snapshot %q is not understood", text)
	}
	if s.next, err = strconv.ParseInt(parts[1], 10, 64); err != nil {
		return s, fmt.Errorf("pg_snapshot %q: %w", text, err)
	}
	for xid := range strings.SplitSeq(parts[2], ",") {
		if xid == "" {
			continue
		}
		n, err := strconv.ParseInt(xid, 10, 64)
		if err != nil {
			return s, fmt.Errorf("pg_snapshot %q: %w", text, err)
		}
		s.running = append(s.running, n)
	}
	slices.Sort(s.running)
	return s, nil
}

// grouped returns the cursor with at most that many holes. Each of them spans several, so that events between these are
// published again after a restart.
func (c cursor) grouped(most int) cursor {
	if len(c.holes) <= most {
		return c
	}
	groups := make([]hole, 0, most)
	for group := range slices.Chunk(c.holes, (len(c.holes)+most-1)/most) {
		groups = append(groups, hole{low: group[0].low, high: group[len(group)-1].high})
	}
	return cursor{c.top, groups, c.topID}
}

// bounds returns the holes in the form that the database stores.
func (c cursor) bounds() (lows, highs []int64) {
	lows, highs = make([]int64, len(c.holes)), make([]int64, len(c.holes))
	for i, h := range c.holes {
		lows[i], highs[i] = h.low, h.high
	}
	return lows, highs
}

// cursorOf returns the cursor for the values that the database stores.
func cursorOf(top int64, lows, highs []int64) cursor {
	c := cursor{top: top}
	for i := range lows {
		c.holes = append(c.holes, hole{low: lows[i], high: highs[i]})
	}
	return c
}

// isHole reports whether a position is at a hole.
func (c cursor) isHole(position int64) bool {
	_, found := slices.BinarySearchFunc(c.holes, position, func(h hole, position int64) int {
		switch {
		case h.high < position:
			return -1
		case h.low > position:
			return 1
		}
		return 0
	})
	return found
}

// positions returns how many positions the holes have.
func (c cursor) positions() (n int64) {
	for _, h := range c.holes {
		n += h.high - h.low + 1
	}
	return n
}
