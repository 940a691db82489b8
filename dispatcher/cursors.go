package dispatcher

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// flow is what a cursor stands for: the jobs of one tenant and one priority, a range of
// the index of due jobs.
type flow struct {
	tenant   outbox.ID
	priority int16
}

// cursor is where the claims of one flow go on.
type cursor struct {
	flow
	at    position // of the last job claimed; zero: none yet
	state flowState
	next  time.Time // when its next job becomes due, as the last survey knew; zero: none known
	used  time.Time // when a job of it was claimed last, or it was found

	locked int       // claims in a row that passed jobs by because they, or their key, were locked
	again  time.Time // when these are looked at again
}

// exhausted notes that a claim has found no more due jobs than it took.
func (c *cursor) exhausted(front bool, since pgtype.Timestamptz) {
	c.state, c.locked, c.again = drained, 0, time.Time{}
	if front && since.Valid {
		// All that is left before this was looked at, and is not for us.
		if at := (position{runAt: since.Time.Add(-lateCommit)}); c.at.before(at) {
			c.at = at
		}
	}
}

// passedLocked notes that a claim has passed jobs by because somebody else had locked them,
// or their key. They are still due, and no survey tells of them: they are looked at again
// soon, but not for ever soon, because somebody may hold the row of a key for an hour.
func (c *cursor) passedLocked(now time.Time) {
	c.state = drained
	c.again = now.Add(lockedRetry << min(c.locked, 8))
	c.locked++
}

// flowState is what is known of a flow's due jobs.
type flowState int

const (
	drained flowState = iota // a claim found no more than it took
	unsure                   // something may have come since
	due                      // the last claim took all that it was allowed to, or a survey found a job
)

// position is a place in a flow.
type position struct {
	runAt time.Time
	id    outbox.ID
}

func (p position) before(other position) bool {
	return cmp.Or(p.runAt.Compare(other.runAt), bytes.Compare(p.id[:], other.id[:])) < 0
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
type cursors struct {
	sorted []*cursor // by tenant, then by priority, the highest first
	front  budget    // of claims from the front
	near   bool      // the last claim did not begin there
	costs  expected  // of claims from the cursors
}

const lockedRetry = 5 * time.Millisecond

// maxCursors bounds a queue's memory, and what a survey of it reads: some milliseconds.
const maxCursors = 1024

// maxNewFlows bounds what a survey finds: there is another one after the next claim.
const maxNewFlows = maxCursors / 4

// lateCommit is how much later than its run_at a job may be committed without having to
// wait for a claim from the front.
const lateCommit = 5 * time.Second

func byFlow(c *cursor, f flow) int {
	return cmp.Or(bytes.Compare(c.tenant[:], f.tenant[:]), cmp.Compare(f.priority, c.priority))
}

// get returns the cursor of a flow; nil if it has none.
func (cs *cursors) get(f flow) *cursor {
	if i, found := slices.BinarySearchFunc(cs.sorted, f, byFlow); found {
		return cs.sorted[i]
	}
	return nil
}

// add makes a cursor for a flow that a survey has found. If there are too many, another is
// forgotten, and found again by a later survey: of those without due jobs the one that was
// used least recently, else the one whose turn comes last after that of served.
func (cs *cursors) add(f flow, now time.Time, served outbox.ID) *cursor {
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
			after, _ := slices.BinarySearchFunc(cs.sorted, flow{served, math.MinInt16}, byFlow)
			forget = (after + len(cs.sorted) - 1) % len(cs.sorted)
		}
		cs.sorted = slices.Delete(cs.sorted, forget, forget+1)
	}
	c := &cursor{flow: f, used: now}
	i, _ := slices.BinarySearchFunc(cs.sorted, f, byFlow)
	cs.sorted = slices.Insert(cs.sorted, i, c)
	return c
}

// leased is a job that a claim has got.
type leased struct {
	flow
	at       position
	goesBack bool // it must be found again
}

// claimed moves the cursors to the last of the jobs that a claim has got.
func (cs *cursors) claimed(jobs []leased, now time.Time) {
	for _, job := range jobs {
		if c := cs.get(job.flow); c != nil && !job.goesBack {
			c.used = now
			if c.at.before(job.at) {
				c.at = job.at
			}
		}
	}
}

// gaps are the ranges of tenants between the cursors, from the first behind served on, and
// those of priorities above, between and below the cursors of each tenant. Both ends belong
// to a range.
func (cs *cursors) gaps(served outbox.ID) (g gaps) {
	next, open := outbox.ID{}, true // the first tenant that no gap and no cursor has covered
	for i := 0; i < len(cs.sorted); {
		tenant := cs.sorted[i].tenant
		if last, ok := previousID(tenant); ok && open && bytes.Compare(next[:], last[:]) <= 0 {
			g.tenants(next, last)
		}
		highest := int32(math.MaxInt16)
		for ; i < len(cs.sorted) && cs.sorted[i].tenant == tenant; i++ {
			g.levels(tenant, int32(cs.sorted[i].priority)+1, highest)
			highest = int32(cs.sorted[i].priority) - 1
		}
		g.levels(tenant, math.MinInt16, highest)
		next, open = nextID(tenant)
	}
	if open {
		g.tenants(next, outbox.ID(bytes.Repeat([]byte{0xff}, len(next))))
	}
	turn, _ := slices.BinarySearchFunc(g.from, served, func(from, served outbox.ID) int { return bytes.Compare(from[:], served[:]) })
	g.from, g.to = slices.Concat(g.from[turn:], g.from[:turn]), slices.Concat(g.to[turn:], g.to[:turn])
	return g
}

// gaps are ranges of tenants without a cursor, and ranges of priorities without one of
// tenants that have others.
type gaps struct {
	from, to        []outbox.ID
	of              []outbox.ID
	lowest, highest []int32
}

func (g *gaps) tenants(from, to outbox.ID) { g.from, g.to = append(g.from, from), append(g.to, to) }

func (g *gaps) levels(of outbox.ID, lowest, highest int32) {
	if lowest <= highest {
		g.of, g.lowest, g.highest = append(g.of, of), append(g.lowest, lowest), append(g.highest, highest)
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

// cost notes what a claim took that looked at so many jobs. One from the front is expensive
// if it takes more than twice as long as one from the cursors.
func (cs *cursors) cost(front bool, now time.Time, took time.Duration, jobs int) {
	cs.near = !front
	if front {
		cs.front.spend(now, took-2*cs.costs.of(jobs))
		cs.costs.lower(took, jobs)
	} else {
		cs.costs.learn(took, jobs)
	}
}
