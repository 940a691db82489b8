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

// Flow identifies the jobs of one tenant and one priority, a range of the index of due jobs. Each cursor stands for a
// flow.
type Flow struct {
	Tenant   outbox.ID
	Priority int16
}

// Cursor is the position from which claims of one flow go on.
type Cursor struct {
	Flow
	At    Position // of the last job claimed; zero if there is none yet
	state flowState

	found    []Position // places of jobs without a key that a search has found before the cursor, in order
	searched bool       // a search has begun to look at what is before the cursor, since its position was given up
	trial    trial      // whether a claim that did not end in time was for this cursor among others

	next time.Time // when its next job becomes due, by the last survey; zero if none is known
	used time.Time // when one of its jobs was claimed last, or the flow was found

	locked int       // claims in a row that passed jobs because they, or their key, were locked
	again  time.Time // when to look at these again

	// A claim of jobs without a key does not report whether it has passed locked ones. So if it gets none of those that
	// were due, the next survey asks whether they are still there, in the range that the claim has read.
	asks *readRange // nil if it does not ask
}

// readRange is the range that a claim has read: what is due now, from where the claim began.
type readRange struct {
	from  time.Time // zero means from the first entry
	front bool      // it began at the front
}

// From returns where a claim begins: at the front if atFront is set, otherwise at the cursor. It never begins beyond
// the cursor, so that it skips no entry after the last claimed job. A cursor without a position begins at the front. A
// position without a time is before the first entry.
func (c *Cursor) From(atFront bool, front Position) Position {
	if !c.At.RunAt.IsZero() && (!atFront || c.At.Before(front)) {
		return c.At
	}
	return front
}

// exhausted notes that a claim has found no more due jobs than it took.
func (c *Cursor) exhausted(front bool, since pgtype.Timestamptz) {
	c.state = drained
	c.nothingLeft(front, since)
}

// nothingLeft notes that no due job is left in the range that a claim has read.
func (c *Cursor) nothingLeft(front bool, since pgtype.Timestamptz) {
	c.locked, c.again, c.asks = 0, time.Time{}, nil
	if front && since.Valid {
		// All entries from the front to this time were looked at; those that are left are not for this process.
		if at := (Position{RunAt: since.Time.Add(-lateCommit)}); c.At.Before(at) {
			c.At = at
		}
	}
}

// passedLocked notes that a claim has passed jobs because another transaction had locked them, or their key. They are
// still due, and no survey shows them, so they are looked at again soon. The wait grows each time, because a
// transaction may lock the row of a key for an hour.
func (c *Cursor) passedLocked(now time.Time) {
	c.state = drained
	c.lookAgain(now)
}

func (c *Cursor) lookAgain(now time.Time) {
	c.asks, c.again = nil, now.Add(LockedPause(c.locked))
	c.locked++
}

// dueAt notes that a job becomes due then.
func (c *Cursor) dueAt(at time.Time) {
	if c.next.IsZero() || at.Before(c.next) {
		c.next = at
	}
}

// trial is where a cursor stands after a claim for several that did not end in time (tooMuch).
type trial int

const (
	noTrial   trial = iota
	suspected       // claims take it by itself
	cleared         // a claim for it by itself has ended in time
)

// flowState records what is known of a flow's due jobs.
type flowState int

const (
	drained flowState = iota // a claim found no more than it took
	unsure                   // jobs may have come since
	due                      // the last claim used up its quota, or a survey found a job
)

// Position is a place in a flow.
type Position struct {
	RunAt time.Time
	ID    outbox.ID
}

func (p Position) Before(other Position) bool { return p.compare(other) < 0 }

func (p Position) compare(other Position) int {
	return cmp.Or(p.RunAt.Compare(other.RunAt), bytes.Compare(p.ID[:], other.ID[:]))
}

// cursors holds the cursors of a queue's jobs without a key, or of its jobs with one.
//
// Claimed jobs leave dead entries at the front of the index. As long as vacuum can remove them, or a claim may mark
// them, reading from the front is free, and every claim does. While a transaction holds a snapshot (a forgotten
// transaction, a long report, pg_dump) they stay, and reading from the front becomes slower with every job that the
// queue has done. While that is expensive, claims begin at their cursors, and only seldom at the front. Jobs that are
// due before their cursor wait for a claim from the front: they were committed late, or given back, or their leases
// have lapsed.
//
// If there are so many dead entries that no claim from the first one ends in time, claims from the front begin near:
// lateCommit before the last survey. A search, which may take longer than a claim, finds what is due before that.
type cursors struct {
	sorted []*Cursor // by tenant, then by priority, the highest first
	front  budget    // for claims from the front
	near   bool      // claims from the front do not begin at the first entry
	behind bool      // the last claim did not begin at the front
	costs  expected  // of claims from the cursors

	suspectsTurn bool // the last claim was for no suspect
}

const soon = 5 * time.Millisecond // how soon to look again at what nobody announces

// LockedPause returns how long to wait before what was locked is looked at again, after so many looks in a row that
// found it locked.
func LockedPause(looks int) time.Duration { return soon << min(looks, 8) }

// maxCursors bounds a queue's memory, and what a survey of the queue reads: some milliseconds.
const maxCursors = 1024

// MaxNewFlows bounds the flows that a survey finds. After one that has found as many, another follows before any claim.
const MaxNewFlows = maxCursors / 4

// lateCommit is how much later than its run_at a job may be committed without having to wait for a claim from the
// front.
const lateCommit = 5 * time.Second

func byFlow(c *Cursor, f Flow) int {
	return cmp.Or(bytes.Compare(c.Tenant[:], f.Tenant[:]), cmp.Compare(f.Priority, c.Priority))
}

// get returns the cursor of a flow, or nil if it has none.
func (cs *cursors) get(f Flow) *Cursor {
	if i, found := slices.BinarySearchFunc(cs.sorted, f, byFlow); found {
		return cs.sorted[i]
	}
	return nil
}

// add makes a cursor for a flow that a survey has found. If there are too many, it forgets another, which a later
// survey finds again: of the cursors without due jobs the one that was used least recently, or if all have due jobs,
// the one whose turn comes last after that of served.
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
	Offered  bool // it was found by its id, and does not show how far the claim has come
}

// claimed moves the cursors to the last of the jobs that a claim has got.
func (cs *cursors) claimed(jobs []Leased, now time.Time) {
	for _, job := range jobs {
		if c := cs.get(job.Flow); c != nil && !job.GoesBack && !job.Offered {
			c.used = now
			c.passed(job.At)
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

// gaps returns the ranges of tenants between the cursors, starting after served, and the ranges of priorities above,
// between and below the cursors of each tenant. Both ends belong to a range.
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
	turn, _ := slices.BinarySearchFunc(g.From, served, func(from, served outbox.ID) int {
		return bytes.Compare(from[:], served[:])
	})
	g.From, g.To = slices.Concat(g.From[turn:], g.From[:turn]), slices.Concat(g.To[turn:], g.To[:turn])
	return g
}

// Gaps holds ranges of tenants without a cursor, and for tenants with cursors the ranges of priorities without one.
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

// nextID and previousID return the neighbours in byte order; they report false if there is none.
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

// endedInTime notes that a claim for these shares has ended.
func (cs *cursors) endedInTime(shares []Share) {
	n := 0
	for _, share := range shares {
		n += len(share.Cursors)
		for _, c := range share.Cursors {
			if c.trial == suspected {
				c.trial = cleared
			}
		}
	}
	if n > 1 && !slices.ContainsFunc(cs.sorted, isSuspect) { // those that were cleared are not too much together
		for _, c := range cs.sorted {
			c.trial = noTrial
		}
	}
}

// tooMuch notes that a claim for these shares did not end in time. If it was for one cursor, so many dead entries are
// before or after its position that claims cannot begin there. Otherwise each is tried by itself. If all of them have
// been, they are too much together.
func (cs *cursors) tooMuch(fromFront bool, front Position, shares []Share) {
	n, tried := 0, 0
	for _, share := range shares {
		for _, c := range share.Cursors {
			if n++; c.trial == cleared {
				tried++
			}
		}
	}
	for _, share := range shares {
		for _, c := range share.Cursors {
			switch from := c.From(fromFront, front); {
			case n > 1 && tried < n:
				if c.trial != cleared {
					c.trial = suspected
				}
				continue
			case from == Position{}:
				cs.near = true
			case from == c.At: // dead entries follow the cursor
				c.At, c.searched = front, false
			}
			c.trial = noTrial
		}
	}
}

func isSuspect(c *Cursor) bool { return c.trial == suspected }

// noteTurn notes whether a claim was for a suspect by itself. A suspect that claims cannot get for another reason, as a
// job that the database refuses, takes every second claim at most.
func (cs *cursors) noteTurn(shares []Share) {
	cs.suspectsTurn = !slices.ContainsFunc(shares, func(s Share) bool {
		return slices.ContainsFunc(s.Cursors, isSuspect)
	})
}

// apart returns what one claim asks for: without suspects, or the first of them by itself if it is their turn, or there
// is nothing else to ask for. The lower priorities of a suspect's tenant wait with it.
func (cs *cursors) apart(shares []Share) []Share {
	var alone, others []Share
	for _, s := range shares {
		i := slices.IndexFunc(s.Cursors, isSuspect)
		switch {
		case i < 0:
			others = append(others, s)
			continue
		case alone == nil:
			alone = []Share{{s.Tenant, s.Cursors[i : i+1], s.Quota}}
		}
		if i > 0 {
			others = append(others, Share{s.Tenant, s.Cursors[:i], s.Quota})
		}
	}
	if alone != nil && (cs.suspectsTurn || len(others) == 0) {
		return alone
	}
	return others
}

// cost records the time of a claim that looked at this many jobs. A claim from the front is expensive if it takes more
// than twice as long as one from the cursors.
func (cs *cursors) cost(front bool, now time.Time, took time.Duration, jobs int) {
	cs.behind = !front
	if front {
		cs.front.spend(now, took-2*cs.costs.of(jobs))
		cs.costs.lower(took, jobs)
	} else {
		cs.costs.learn(took, jobs)
	}
}
