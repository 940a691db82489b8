package scheduler

import (
	"slices"
	"time"
)

const (
	// MaxFound is how many jobs of a flow a search finds.
	MaxFound = 256
	// maxSearchRest bounds the time from the end of a round of searches to the next one, which also finds out whether
	// the dead entries are gone.
	maxSearchRest = 5 * time.Minute
	// minRest is the least of it, and of the rest of what has failed. If a round reads for less, claims from the first
	// entry will end in time again.
	minRest = time.Second
)

// Range is a part of a flow in which claims do not find due jobs, because they begin later: its entries before End.
type Range struct {
	Flow
	Keyed bool
	End   Position
}

// searchRound is a look at what is before all cursors of the sets whose claims begin near. One search may not get
// through all of it.
type searchRound struct {
	on   bool
	took time.Duration
	read time.Duration // the part of it that searches read for
	more bool          // a search has failed, or has found as many jobs of a flow as it may
}

// Search returns what is to be searched now, and notes that the search is under way: nothing, unless claims from the
// first entry do not end in time. A flow whose position was given up since the last round does not wait for the next.
// A cursor without a position then begins where its range ends, so that no claim skips what becomes due meanwhile.
func (s *Scheduler) Search(now time.Time) (ranges []Range) {
	if s.searching || now.Before(s.searchRests) {
		return nil
	}
	begins := !s.round.on && !now.Before(s.searchDue)
	for _, keyed := range []bool{false, true} {
		cs, front := s.cursors(keyed), s.Front(keyed)
		if front.RunAt.IsZero() {
			continue
		}
		for _, c := range cs.sorted {
			if c.searched && !begins {
				continue
			}
			if c.searched = true; c.At.RunAt.IsZero() {
				c.At = front
			}
			end := front
			if c.At.Before(front) {
				end = c.At
			}
			ranges = append(ranges, Range{c.Flow, keyed, end})
		}
	}
	s.searching = len(ranges) > 0
	s.round.on = s.searching && (s.round.on || begins)
	return ranges
}

// Unclaimed returns how many jobs without a key searches have found that no claim has looked at.
func (s *Scheduler) Unclaimed() (n int) {
	for _, c := range s.plain.sorted {
		n += len(c.found)
	}
	return n
}

// nextSearch returns when the next search may begin that looks at one of these cursors.
func (s *Scheduler) nextSearch(cs *cursors) time.Time {
	if s.searchDue.After(s.searchRests) && !slices.ContainsFunc(cs.sorted, func(c *Cursor) bool { return !c.searched }) {
		return s.searchDue
	}
	return s.searchRests
}

// SearchEnd is how a search has ended.
type SearchEnd int

const (
	SearchEnded  SearchEnd = iota
	SearchCutOff           // in the last of the ranges that it looked at, which may be too much for its deadline
	SearchFailed           // for another reason
)

// NoteSearch learns from a search that ended now: what it has found in the first of its ranges. The one in which it was
// cut off waits for the next round. took is the whole time, and read that of reading, without waiting for answers. The
// caller offers jobs with a key to a claim.
func (s *Scheduler) NoteSearch(ranges []Range, found [][]Position, end SearchEnd, now time.Time,
	took, read time.Duration,
) {
	s.searching, s.searchRests = false, now.Add(took)
	s.round.took += took
	s.round.read += read
	if end != SearchEnded {
		s.searchRests, s.round.more = now.Add(max(took, minRest)), true
	}
	left := false
	for i, r := range ranges {
		c := s.cursors(r.Keyed).get(r.Flow)
		switch {
		case c == nil: // its cursor was dropped meanwhile
		case i >= len(found):
			c.searched, left = false, true
		case len(found[i]) > 0:
			c.goBack(found[i], r.Keyed)
			s.round.more = s.round.more || len(found[i]) == MaxFound
		}
	}
	if !s.round.on {
		s.round = searchRound{}
	} else if !left {
		s.endRound(now)
	}
}

func (s *Scheduler) endRound(now time.Time) {
	s.searchDue = now.Add(max(min(RestFactor*s.round.took, maxSearchRest), minRest))
	if s.round.read < minRest && !s.round.more {
		for _, cs := range []*cursors{&s.plain, &s.keyed} {
			if cs.near {
				cs.near, cs.front, cs.behind = false, budget{}, true
			}
		}
	}
	s.round = searchRound{}
}

// goBack notes the jobs that a search has found before the cursor. If there may be others after them, claims go on from
// the last.
func (c *Cursor) goBack(found []Position, keyed bool) {
	c.state, c.asks = due, nil
	if len(found) == MaxFound {
		c.At = found[MaxFound-1]
	}
	if !keyed { // those with a key are offered
		c.found = found
	}
}

// Found returns the places of jobs that a search has found before the cursor, for a claim that begins at from. A claim
// looks at each place by itself, because the entries between them may be dead and too many to read.
func (c *Cursor) Found(from Position) []Position {
	n, _ := slices.BinarySearchFunc(c.found, from, Position.compare)
	return c.found[:n]
}

// passed notes that a claim has come as far as this position: if it has not taken the jobs that a search has found
// before, they are gone, or locked until another search.
func (c *Cursor) passed(at Position) {
	n, is := slices.BinarySearchFunc(c.found, at, Position.compare)
	if is {
		n++
	}
	c.found = c.found[n:]
}
