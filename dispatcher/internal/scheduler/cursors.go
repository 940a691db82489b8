package scheduler

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Flow is what a cursor stands for: the jobs of one tenant and one priority, a range of
// the index of due jobs.
type Flow struct {
	Tenant   outbox.ID
	Priority int16
}

// Cursor is where the claims of one flow go on.
type Cursor struct {
	Flow
	At    Position // of the last job claimed; zero: none yet
	state flowState
	next  time.Time // when its next job becomes due, as the last survey knew; zero: none known
	used  time.Time // when a job of it was claimed last, or it was found

	locked int       // claims in a row that passed jobs by because they, or their key, were locked
	again  time.Time // when these are looked at again
}

// From is where a claim begins that is to begin at the front, or, without atFront, at the cursor: what was claimed
// before is never passed by. A position without a time is before the first entry.
func (c *Cursor) From(atFront bool, front Position) Position {
	if !c.At.RunAt.IsZero() && (!atFront || c.At.Before(front)) {
		return c.At
	}
	return front
}

// exhausted notes that a claim has found no more due jobs than it took.
func (c *Cursor) exhausted(front bool, since pgtype.Timestamptz) {
	c.state, c.locked, c.again = drained, 0, time.Time{}
	if front && since.Valid {
		// All that is left before this was looked at, and is not for us.
		if at := (Position{RunAt: since.Time.Add(-lateCommit)}); c.At.Before(at) {
			c.At = at
		}
	}
}

// passedLocked notes that a claim has passed jobs by because somebody else had locked them,
// or their key. They are still due, and no survey shows them: they are looked at again
// soon, but not for ever soon, because somebody may hold the row of a key for an hour.
func (c *Cursor) passedLocked(now time.Time) {
	c.state = drained
	c.again = now.Add(LockedRetry << min(c.locked, 8))
	c.locked++
}

// flowState is what is known of a flow's due jobs.
type flowState int

const (
	drained flowState = iota // a claim found no more than it took
	unsure                   // something may have come since
	due                      // the last claim took all that it was allowed to, or a survey found a job
)

// Position is a place in a flow.
type Position struct {
	RunAt time.Time
	ID    outbox.ID
}

func (p Position) Before(other Position) bool {
	return cmp.Or(p.RunAt.Compare(other.RunAt), bytes.Compare(p.ID[:], other.ID[:])) < 0
}

// cursors are those of a queue's jobs without a key, or of those with one.
//
// What was claimed leaves dead entries at the front of the index. As long as vacuum can
// remove them, or a claim may mark them, reading from the front is free, and every claim
// does. While somebody holds a snapshot (a forgotten transaction, a long report, pg_dump)
// they stay, and a queue that reads from the front slows down with every job that it has
// done. So while that is expensive claims begin at their cursors, and seldom at the front:
// what is due before its cursor waits for that. It was committed late, or given back, or
// its lease has lapsed.
//
// Where there are so many of them that no claim from the front ends in time, the front is brought near: it is a time,
// reach before the last survey, and moves back with each claim that ends.
type cursors struct {
	sorted []*Cursor     // by tenant, then by priority, the highest first
	front  budget        // of claims from the front
	reach  time.Duration // how far back the front is; 0: it is the first entry
	behind bool          // the last claim did not begin there, or the front is not the first entry
	costs  expected      // of claims from the cursors
}

const LockedRetry = 5 * time.Millisecond

// maxCursors bounds a queue's memory, and what a survey of it reads: some milliseconds.
const maxCursors = 1024

// maxNewFlows bounds what a survey finds: there is another one after the next claim.
const MaxNewFlows = maxCursors / 4

// lateCommit is how much later than its run_at a job may be committed without having to
// wait for a claim from the front.
const lateCommit = 5 * time.Second

func byFlow(c *Cursor, f Flow) int {
	return cmp.Or(bytes.Compare(c.Tenant[:], f.Tenant[:]), cmp.Compare(f.Priority, c.Priority))
}

// get returns the cursor of a flow; nil if it has none.
func (cs *cursors) get(f Flow) *Cursor {
	if i, found := slices.BinarySearchFunc(cs.sorted, f, byFlow); found {
		return cs.sorted[i]
	}
	return nil
}

// add makes a cursor for a flow that a survey has found. If there are too many, another is
// forgotten, and found again by a later survey: of those without due jobs the one that was
// used least recently, else the one whose turn comes last after that of served.
func (cs *cursors) add(f Flow, now time.Time, served outbox.ID) *Cursor {
	if c := cs.get(f); c != nil {
		return c
	}
	if len(cs.sorted) >= maxCursors {
		forget := -1
		for i, c := range cs.sorted {
			if c.state == drained && (forget < 0 || c.used.Before(cs.sorted[forget].used)) {
				forget = i
			}
		}
		if forget < 0 {
			after, _ := slices.BinarySearchFunc(cs.sorted, Flow{served, math.MinInt16}, byFlow)
			forget = (after + len(cs.sorted) - 1) % len(cs.sorted)
		}
		cs.sorted = slices.Delete(cs.sorted, forget, forget+1)
	}
	c := &Cursor{Flow: f, used: now}
	i, _ := slices.BinarySearchFunc(cs.sorted, f, byFlow)
	cs.sorted = slices.Insert(cs.sorted, i, c)
	return c
}

// Leased is a job that a claim has got.
type Leased struct {
	Flow
	At       Position
	GoesBack bool // it must be found again
	Offered  bool // it was come to by its id, and does not show how far the claim has come
}

// claimed moves the cursors to the last of the jobs that a claim has got.
func (cs *cursors) claimed(jobs []Leased, now time.Time) {
	for _, job := range jobs {
		if c := cs.get(job.Flow); c != nil && !job.GoesBack && !job.Offered {
			c.used = now
			if c.At.Before(job.At) {
				c.At = job.At
			}
		}
	}
}

// unsure notes that any flow may have jobs that no claim has seen.
func (cs *cursors) unsure() {
	for _, c := range cs.sorted {
		c.state = max(c.state, unsure)
	}
}

// gaps are the ranges of tenants between the cursors, from the first behind served on, and
// those of priorities above, between and below the cursors of each tenant. Both ends belong
// to a range.
func (cs *cursors) gaps(served outbox.ID) (g Gaps) {
	next, open := outbox.ID{}, true // the first tenant that no gap and no cursor has covered
	for i := 0; i < len(cs.sorted); {
		tenant := cs.sorted[i].Tenant
		if last, ok := previousID(tenant); ok && open && bytes.Compare(next[:], last[:]) <= 0 {
			g.tenants(next, last)
		}
		highest := int32(math.MaxInt16)
		for ; i < len(cs.sorted) && cs.sorted[i].Tenant == tenant; i++ {
			g.levels(tenant, int32(cs.sorted[i].Priority)+1, highest)
			highest = int32(cs.sorted[i].Priority) - 1
		}
		g.levels(tenant, math.MinInt16, highest)
		next, open = nextID(tenant)
	}
	if open {
		g.tenants(next, outbox.ID(bytes.Repeat([]byte{0xff}, len(next))))
	}
	turn, _ := slices.BinarySearchFunc(g.From, served, func(from, served outbox.ID) int { return bytes.Compare(from[:], served[:]) })
	g.From, g.To = slices.Concat(g.From[turn:], g.From[:turn]), slices.Concat(g.To[turn:], g.To[:turn])
	return g
}

// Gaps are ranges of tenants without a cursor, and ranges of priorities without one of
// tenants that have others.
type Gaps struct {
	From, To        []outbox.ID
	Of              []outbox.ID
	Lowest, Highest []int32
}

func (g *Gaps) tenants(from, to outbox.ID) { g.From, g.To = append(g.From, from), append(g.To, to) }

func (g *Gaps) levels(of outbox.ID, lowest, highest int32) {
	if lowest <= highest {
		g.Of, g.Lowest, g.Highest = append(g.Of, of), append(g.Lowest, lowest), append(g.Highest, highest)
	}
}

// nextID and previousID are the neighbours in the order of bytes; false if there is none.
func nextID(id outbox.ID) (outbox.ID, bool) {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]++; id[i] != 0 {
			return id, true
		}
	}
	return id, false
}

func previousID(id outbox.ID) (outbox.ID, bool) {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i]--; id[i] != 0xff {
			return id, true
		}
	}
	return id, false
}

const (
	nearFront   = time.Minute
	reachGrowth = 4
	farFront    = 365 * 24 * time.Hour // beyond it the front is the first entry again
)

// tooMuch notes that a claim did not end in time that began at the front, or at a cursor that has no position yet and
// so begins there.
func (cs *cursors) tooMuch(front bool) {
	switch {
	case !front && !slices.ContainsFunc(cs.sorted, func(c *Cursor) bool { return c.At.RunAt.IsZero() }):
	case cs.reach == 0:
		cs.reach = nearFront
	default:
		cs.reach = max(cs.reach/(reachGrowth*reachGrowth), lateCommit)
	}
}

// cost notes what a claim took that looked at so many jobs. One from the front is expensive
// if it takes more than twice as long as one from the cursors.
func (cs *cursors) cost(front bool, now time.Time, took time.Duration, jobs int) {
	cs.behind = !front || cs.reach > 0
	if front {
		cs.front.spend(now, took-2*cs.costs.of(jobs))
		cs.costs.lower(took, jobs)
		if cs.reach *= reachGrowth; cs.reach > farFront {
			cs.reach = 0
		}
	} else {
		cs.costs.learn(took, jobs)
	}
}
