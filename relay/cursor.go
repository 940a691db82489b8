package relay

import "slices"

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
// finds nothing is the last.
type cursor struct {
	top   int64
	holes []hole // in order, apart from each other, up to top
}

// hole is the positions low to high.
type hole struct {
	low, high int64
	// before is above the numbers of all transactions that may fill it; 0 is not known yet.
	before int64
}

// after returns the cursor once events are published, whose positions rise.
func (c cursor) after(published []int64) cursor {
	n, _ := slices.BinarySearch(published, c.top+1)
	next := cursor{top: c.top, holes: without(c.holes, published[:n])}
	for _, position := range published[n:] {
		if position > next.top+1 {
			next.holes = append(next.holes, hole{low: next.top + 1, high: position - 1})
		}
		next.top = position
	}
	return next
}

// without returns holes without some positions, which rise. What it returns can be
// appended to, and holes stays as it is.
func without(holes []hole, filled []int64) []hole {
	if len(filled) == 0 {
		return slices.Clip(holes)
	}
	left := make([]hole, 0, len(holes)+1)
	for _, h := range holes {
		for len(filled) > 0 && filled[0] <= h.high {
			if at := filled[0]; at >= h.low {
				if at > h.low {
					left = append(left, hole{h.low, at - 1, h.before})
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
			holes[i].before = xid
		}
	}
	return cursor{c.top, holes}
}

// isNumbered reports whether all holes have a bound.
func (c cursor) isNumbered() bool {
	return !slices.ContainsFunc(c.holes, func(h hole) bool { return h.before == 0 })
}

// closed returns the cursor without the holes that nobody will fill: a look at all
// positions up to examined has found nothing at them, and before the look all transactions
// below oldest had ended.
func (c cursor) closed(oldest, examined int64) cursor {
	if !slices.ContainsFunc(c.holes, func(h hole) bool { return h.isClosed(oldest, examined) }) {
		return c
	}
	var left []hole
	for _, h := range c.holes {
		if !h.isClosed(oldest, examined) {
			left = append(left, h)
		}
	}
	return cursor{c.top, left}
}

func (h hole) isClosed(oldest, examined int64) bool {
	return h.before != 0 && h.before <= oldest && h.high <= examined
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
