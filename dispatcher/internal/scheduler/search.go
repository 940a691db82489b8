package scheduler

import "time"

// maxSearchRest bounds the time between two searches: a job that only a search finds waits no longer for it. The search
// also finds out that the dead entries are gone.
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
	if s.searching {
		return plain, keyed
	}
	s.searchingAll = !now.Before(s.searchDue)
	plain, keyed = s.unreached(false), s.unreached(true)
	s.searching = len(plain.Flows)+len(keyed.Flows) > 0
	return plain, keyed
}

// unreached returns of each cursor the range before it, or before the front if that is nearer.
func (s *Scheduler) unreached(keyed bool) (r Ranges) {
	cs, front := s.cursors(keyed), s.Front(keyed)
	if front.RunAt.IsZero() {
		return r
	}
	for _, c := range cs.sorted {
		if s.searchingAll || !c.searched {
			r.Flows, r.Ends = append(r.Flows, c.Flow), append(r.Ends, c.From(true, front))
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

// NoteSearch learns from a search that ended now, or failed. The caller offers the found jobs with a key to a claim;
// those without one are claimed by [Scheduler.PlanFound]. If there may be more after them, the flow's claims go on from
// the last one.
func (s *Scheduler) NoteSearch(found []Found, failed bool, now time.Time, took time.Duration) {
	s.searching = false
	if s.searchingAll {
		s.searchDue = now.Add(max(min(RestFactor*took, maxSearchRest), time.Second))
		if !failed && took < quickSearch {
			s.plain.near, s.keyed.near = false, false
		}
	}
	of := map[*Cursor]int{}
	for _, f := range found {
		if !f.Keyed {
			s.found = append(s.found, f)
		}
		if c := s.cursors(f.Keyed).get(f.Flow); c != nil {
			if of[c]++; of[c] == MaxFound {
				c.At, c.state = f.At, due
			}
		}
	}
}

// PlanFound returns a plan for a claim of jobs that a search has found: of each from its own place, so that the claim
// reads none of the entries between them.
func (s *Scheduler) PlanFound(room int) (p Plan) {
	n := min(room, len(s.found))
	for _, f := range s.found[:n] {
		p.Plain = append(p.Plain, Share{s.Tenant(f.Tenant), []*Cursor{{Flow: f.Flow, At: f.At}}, 1})
	}
	s.found = s.found[n:]
	p.Aside = true
	return p
}
