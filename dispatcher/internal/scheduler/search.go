package scheduler

import (
	"slices"
	"time"
)

// maxSearchRest bounds the time from the end of a search to the next one. The search also finds out that the dead
// entries are gone.
const maxSearchRest = 5 * time.Minute

// quickSearch is how long a search takes at most if claims from the first entry will end in time again.
const quickSearch = time.Second

// Ranges are the parts of a queue in which claims do not find due jobs, because they begin later: of each flow the
// entries before a position.
type Ranges struct {
	Flows []Flow
	Ends  []Position
}

// Search returns what is to be searched now, and notes that the search is under way: nothing, unless claims from the
// first entry do not end in time. A flow that none has looked at need not wait until it is time for all of them.
func (s *Scheduler) Search(now time.Time) (plain, keyed Ranges) {
	if s.searching || now.Before(s.searchRests) {
		return plain, keyed
	}
	s.searchingAll = !now.Before(s.searchDue)
	plain, keyed = s.unreached(false), s.unreached(true)
	s.searching = len(plain.Flows)+len(keyed.Flows) > 0
	return plain, keyed
}

// nextSearch returns when the next search may begin that looks at one of these cursors.
func (s *Scheduler) nextSearch(cs *cursors) time.Time {
	if s.searchDue.After(s.searchRests) && !slices.ContainsFunc(cs.sorted, func(c *Cursor) bool { return !c.searched }) {
		return s.searchDue
	}
	return s.searchRests
}

// unreached returns of each cursor the range before it, or before the front if that is nearer. A cursor without a
// position then begins where its range ends, so that no claim skips what becomes due meanwhile.
func (s *Scheduler) unreached(keyed bool) (r Ranges) {
	cs, front := s.cursors(keyed), s.Front(keyed)
	if front.RunAt.IsZero() {
		return r
	}
	for _, c := range cs.sorted {
		if s.searchingAll || !c.searched {
			at := c.goesOn()
			if at.RunAt.IsZero() {
				*at = front
			}
			end := front
			if at.Before(front) {
				end = *at
			}
			r.Flows, r.Ends = append(r.Flows, c.Flow), append(r.Ends, end)
			c.searched = true
		}
	}
	return r
}

// Found is a due job that a search has found.
type Found struct {
	Keyed bool
	Flow
	At Position
}

// MaxFound is how many jobs of a flow a search finds.
const MaxFound = 256

// NoteSearch learns from a search that ended now, or failed. The caller offers the found jobs with a key to a claim.
// For those without one, claims go back to the first; if there may be more after the last, they go on from it.
func (s *Scheduler) NoteSearch(found []Found, failed bool, now time.Time, took time.Duration) {
	s.searching = false
	s.searchRests = now.Add(min(took, maxSearchRest))
	switch {
	case failed:
		s.searchDue = now.Add(max(min(4*took, maxSearchRest), time.Second))
	case s.searchingAll:
		s.searchDue = now.Add(max(min(RestFactor*took, maxSearchRest), time.Second))
		if took < quickSearch {
			for _, cs := range []*cursors{&s.plain, &s.keyed} {
				if cs.near {
					cs.near, cs.front, cs.behind = false, budget{}, true
				}
			}
			return // claims from the first entry find the jobs
		}
	}
	for len(found) > 0 {
		f, n := found[0], 1
		for n < len(found) && found[n].Keyed == f.Keyed && found[n].Flow == f.Flow {
			n++
		}
		if c := s.cursors(f.Keyed).get(f.Flow); c != nil {
			c.goBack(found[:n])
		}
		found = found[n:]
	}
}

// goBack moves the cursor back to jobs that a search has found, the first ones first. If there may be others after
// them, claims go on from the last.
func (c *Cursor) goBack(found []Found) {
	c.state, c.asks = due, false
	if len(c.back) == 0 {
		c.ahead = c.At
	}
	if last := found[len(found)-1]; len(found) == MaxFound {
		c.ahead = last.At
	}
	if found[0].Keyed { // they are offered
		c.At, c.ahead = c.ahead, Position{}
		return
	}
	c.back = nil
	for _, f := range found {
		c.back = append(c.back, f.At)
	}
	c.At = c.back[0]
}

// apart divides what a claim takes of a tenant's jobs without a key, if a search has moved one of the cursors back: one
// job from that cursor alone, and the rest from those of higher priority. If there is one place only, these have it
// while they have due jobs.
func apart(t *Tenant, cs []*Cursor, quota int) []Share {
	i := slices.IndexFunc(cs, func(c *Cursor) bool { return len(c.back) > 0 })
	switch {
	case i < 0:
		return []Share{{t, cs, quota}}
	case i == 0, quota == 1 && !anyDue(cs[:i]):
		return []Share{{t, cs[i : i+1], 1}}
	case quota == 1:
		return []Share{{t, cs[:i], 1}}
	}
	return []Share{{t, cs[:i], quota - 1}, {t, cs[i : i+1], 1}}
}
