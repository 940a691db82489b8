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

// cursor is how far a sink has come in the log: every event up to top is published, but for
// those at the holes. It is a value: methods return another cursor.
//
// A hole is a run of positions that were given out and at which no event could be seen. The
// transaction that took them runs still, or it was rolled back, or the event was seen and
// the broker has not accepted it. Whatever can be seen is published at once, in the order
// of positions, with the events at holes before newer ones. That keeps the order of a key:
//
//	transaction A    locks the key, takes 7, commits
//	transaction B                                    has the lock, takes 9, commits
//	reader                    sees 8 (of another key): 7 is a hole        sees 7 and 9
//
// Where the two transactions lock the same row before they publish, B's position is higher,
// and nobody sees 9 before 7 can be seen. So all that a reader must do is to look at the
// holes with a snapshot that is no older than the one with which it saw newer events.
//
// A hole is closed for good when it is known that nobody will fill it. Each transaction has
// its number before it takes a position (the default of outbox.events.position says so).
// So those that may fill a hole have numbers below one that is given out after the hole was
// noticed. Once all transactions below that number have ended, a look at the hole that
// finds nothing is the last. And while as many of them run as at the last look, none of them
// has ended since, so that there is nothing new to be seen: a transaction that is open for an
// hour costs no look at its holes.
//
// Events that share a position, as EventsAfter says that they may, are read together, and the
// cursor passes it when all of them are published.
//
// Holes that lie apart are stored with each step, so there is a limit to them: see maxHoles.
type cursor struct {
	top   int64
	holes []hole    // in order, apart from each other, up to top
	topID outbox.ID // of the event at top, by which it is known again after a failover; zero: the database knows
}

// hole is the positions low to high.
type hole struct {
	low, high int64
	// before is above the numbers of all transactions that may fill it; 0 is not known yet.
	before int64
	// running is how many of those ran shortly before the last look; -1 is that there was none since before is known.
	running int
}

// maxHoles is how many holes a sink has before it reads nothing newer and waits for those transactions. Beside one
// that is open for long, each that is rolled back leaves one: 50 a second are 30,000 in ten minutes. To store so many
// as this takes 450 ms of the server and 790 kB of WAL each time, and a tenth of that for a tenth: see storePause. In
// memory a look costs some milliseconds. Tests have a lower limit.
var maxHoles = 100_000

// past returns the cursor once events are published, whose positions do not fall. Of events that share top, the one
// that was stored last is known again: a failover loses that first.
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

// after returns the cursor once events are published, whose positions rise.
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

// without returns holes without some positions, which rise. What it returns can be
// appended to, and holes stays as it is.
func without(holes []hole, filled []int64) []hole {
	if len(filled) == 0 {
		return slices.Clip(holes)
	}
	first, _ := slices.BinarySearchFunc(holes, filled[0], func(h hole, position int64) int { return cmp.Compare(h.high, position) })
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

// numbered returns the cursor with a bound for holes that have none: a transaction has got
// this number after the cursor was made.
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

// mayBeFilled are the holes that may have got an event since the last look, given the
// transactions that run.
func (c cursor) mayBeFilled(now snapshot) (holes []hole) {
	running := now.below()
	for _, h := range c.holes {
		if h.before == 0 || h.running != running(h.before) {
			holes = append(holes, h)
		}
	}
	return holes
}

// looked returns the cursor after a look at those of its holes that mayBeFilled has named,
// up to a position, that has found nothing at them: holes that nobody can fill any more are
// closed.
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

// snapshot is the numbers of the transactions that run, in order, up to next; of those from
// there on nothing is known: they may run.
type snapshot struct {
	next    int64
	running []int64
}

// runningBelow is how many transactions below a number may run.
func (s snapshot) runningBelow(xid int64) int {
	n, _ := slices.BinarySearch(s.running, xid)
	return n + int(max(0, xid-s.next))
}

// below is runningBelow for holes in order: those that were noticed together have the same number.
func (s snapshot) below() func(xid int64) int {
	last, n := int64(0), 0
	return func(xid int64) int {
		if xid != last {
			last, n = xid, s.runningBelow(xid)
		}
		return n
	}
}

// parseSnapshot reads a pg_snapshot, such as 10:20:10,14,15.
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

// bounds are the holes as the database has them.
func (c cursor) bounds() (lows, highs []int64) {
	lows, highs = make([]int64, len(c.holes)), make([]int64, len(c.holes))
	for i, h := range c.holes {
		lows[i], highs[i] = h.low, h.high
	}
	return lows, highs
}

// cursorOf is the cursor that the database has.
func cursorOf(top int64, lows, highs []int64) cursor {
	c := cursor{top: top}
	for i := range lows {
		c.holes = append(c.holes, hole{low: lows[i], high: highs[i]})
	}
	return c
}

// positions is how many positions the holes have.
func (c cursor) positions() (n int64) {
	for _, h := range c.holes {
		n += h.high - h.low + 1
	}
	return n
}
