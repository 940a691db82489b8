// Package scheduler decides for one queue what the next claim asks for, whose turn it is, how far claims look, and how
// long the queue may sleep. It uses no database and starts no goroutines: it learns from the results of claims and
// surveys.
//
// Without it, one tenant's backlog would delay the others (posthaste bench tenants), and a forgotten transaction would
// slow down every claim (row D1 of the scorecard). The price: a job that is committed long after it was due waits for a
// claim from the front.
package scheduler

import (
	"bytes"
	"iter"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Scheduler has two sets of cursors, one for jobs without a key and one for jobs with a key, each with a cursor for
// every tenant and priority in use. Only the claim loop uses it.
//
// The scheduler divides room among the tenants with due jobs, in rotation and as evenly as possible. It asks for one
// job of a tenant that may have due jobs. While several tenants use the queue, no tenant may hold all of its workers,
// if there are as many as ExpressPart. A tenant that holds few jobs is claimed for even without room (express): its
// jobs need not wait until the buffer, which other tenants have filled, is worked off.
type Scheduler struct {
	plain, keyed cursors
	tenants      map[outbox.ID]*Tenant
	served       outbox.ID // the tenant whose turn was last
	othersUsed   time.Time // when a job of another tenant than root was claimed last
	concurrency  int

	keyedPausedUntil time.Time // until then jobs with a key leave the room to the others

	gapBudget   budget             // of surveys that cover the gaps: look for tenants and priorities without a cursor
	gapsCovered bool               // the last survey covered them
	surveys     expected           // of surveys that did not
	since       pgtype.Timestamptz // the database's time of the last survey; NULL before the first
	surveyed    time.Time          // when that survey ended
	state       surveyState        // of that survey
	looked      time.Time          // when it was last noted that any flow might have new jobs
	failure     func(Failure)      // records the cost of the last failed statement; nil if there is none

	searching   bool      // a search is under way
	searchRests time.Time // until then there is no other
	searchDue   time.Time // when the next round may begin
	round       searchRound
}

// surveyState is what may be missing from the last survey; the higher states include the lower.
type surveyState int

const (
	upToDate     surveyState = iota
	claimedSince             // something was claimed since, here or by another process
	wokenSince               // jobs may have come since
	incomplete               // it found as many flows as it may: there may be others
	noSurvey                 // there was none
)

// Tenant is what is known of a tenant's use of a queue.
type Tenant struct {
	ID        outbox.ID
	InHand    atomic.Int64 // jobs claimed and not finished, except those of batches and those that a commit claimed
	used      time.Time    // when one of its jobs was claimed last
	HasMore   bool         // the last claim for more than a few jobs used up its quota: it has no express jobs
	keyedTurn bool         // whether its jobs with a key get the next single place, or the others
}

const (
	// Sparse is how many jobs a tenant may hold and still be claimed for without room.
	Sparse = 8
	// MaxExpress is how many jobs one claim may take without room.
	MaxExpress = 8 * Sparse
	// ExpressPart is the divisor for express workers: while tenants share the queue, one worker in ExpressPart only
	// takes express jobs, and none that waits in the buffer. Otherwise a tenant whose jobs take a minute would make
	// another tenant's job wait until one of them ends.
	ExpressPart = 16
	// shareTime is how long after its last claim a tenant counts as using the queue.
	shareTime = 10 * time.Second
	// surveyInterval is the time between surveys while busy; if jobs may have come, soon is enough.
	surveyInterval = 100 * time.Millisecond
)

func New(concurrency int) *Scheduler {
	s := &Scheduler{tenants: map[outbox.ID]*Tenant{}, concurrency: concurrency, state: noSurvey}
	s.plain.add(Flow{Tenant: outbox.RootTenant}, time.Time{}, outbox.ID{}).state = unsure
	s.plain.costs.perJob, s.keyed.costs.perJob = firstCost, firstCost
	return s
}

// Places counts the jobs that a queue has room for.
type Places struct {
	Room     int // jobs to claim now; 0 until that is worth a round trip
	Express  int // jobs of tenants that hold few, while Room is 0
	Capacity int // jobs that may be in hand in total
}

// Share is what a claim may take of a tenant: no more than Quota of all its cursors together, in their order.
type Share struct {
	Tenant  *Tenant
	Cursors []*Cursor
	Quota   int
}

// Plan describes the next claim.
type Plan struct {
	Plain, Keyed []Share
	Kinds        []string // to claim
	Shared       bool     // tenants share the queue: some workers are for express jobs only
	Probe        bool     // for one job of any flow: the scheduler learns nothing from it
}

func (p *Plan) Empty() bool { return len(p.Plain) == 0 && len(p.Keyed) == 0 }

// Expects reports whether the claim is for jobs that are known to be due.
func (p *Plan) Expects() bool {
	return slices.ContainsFunc(p.Plain, expectedJobs) || slices.ContainsFunc(p.Keyed, expectedJobs)
}

// Shares returns the shares of jobs with a key, or of jobs without one.
func (p *Plan) Shares(keyed bool) []Share {
	if keyed {
		return p.Keyed
	}
	return p.Plain
}

// Room returns how many jobs a claim takes for the given shares of the plan.
func (p *Plan) Room(shares []Share) int {
	if p.Probe {
		return 1
	}
	return quotas(shares)
}

func quotas(shares []Share) (sum int) {
	for _, s := range shares {
		sum += s.Quota
	}
	return sum
}

// claimant is a tenant that has due jobs, or may have.
type claimant struct {
	*Tenant
	plain, keyed []*Cursor
	offered      bool // jobs with a key were promoted, and no claim has looked at them
	due          bool
	quota        int
}

// Plan divides the available places. offered lists the tenants of promoted jobs.
func (s *Scheduler) Plan(now time.Time, p Places, offered []outbox.ID) Plan {
	s.forgetTenants(now)
	all := s.waiting(now, offered)
	made := Plan{Shared: s.shared(now, all)}
	if made.Shared {
		p.Capacity -= s.concurrency / ExpressPart
	}
	if p.Room > 0 {
		divide(all, p.Room, p.Capacity)
	} else if s.Several() {
		divideExpress(all, p.Express)
	}
	for i := range all {
		w := &all[i]
		if w.quota <= 0 {
			continue
		}
		plain, keyed := w.split()
		if made.Shared { // their claim takes some milliseconds, and a job that comes meanwhile waits for its end
			keyed = min(keyed, max(2*MaxExpress/len(all), 1))
		}
		if plain > 0 {
			made.Plain = append(made.Plain, Share{w.Tenant, w.plain, plain})
		}
		if keyed > 0 {
			made.Keyed = append(made.Keyed, Share{w.Tenant, w.keyed, keyed})
		}
	}
	made.Plain, made.Keyed = s.plain.apart(made.Plain), s.keyed.apart(made.Keyed)
	return made
}

// waiting returns the tenants that have due jobs or may have some, in rotation: it starts after the tenant that was
// served last.
func (s *Scheduler) waiting(now time.Time, offered []outbox.ID) (all []claimant) {
	of := map[outbox.ID]int{}
	turn := 0
	add := func(id outbox.ID, due bool) *claimant {
		at, found := of[id]
		if !found {
			at = len(all)
			of[id] = at
			all = append(all, claimant{Tenant: s.Tenant(id)})
		}
		all[at].due = all[at].due || due
		return &all[at]
	}
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		if cs.behind && cs.front.allows(now) { // the next claim should find jobs before any cursor
			cs.unsure()
		}
	}
	for _, c := range s.plain.sorted {
		if c.state != drained {
			w := add(c.Tenant, c.state == due)
			w.plain = append(w.plain, c)
		}
	}
	if len(all) == 0 || !now.Before(s.keyedPausedUntil) {
		for _, c := range s.keyed.sorted {
			if c.state != drained {
				w := add(c.Tenant, c.state == due)
				w.keyed = append(w.keyed, c)
			}
		}
		for _, id := range offered {
			add(id, true).offered = true
		}
	}
	if len(all) < 2 {
		return all
	}
	slices.SortFunc(all, func(x, y claimant) int { return bytes.Compare(x.ID[:], y.ID[:]) })
	for turn < len(all) && bytes.Compare(all[turn].ID[:], s.served[:]) <= 0 {
		turn++
	}
	return slices.Concat(all[turn:], all[:turn])
}

// Tenant returns the record of a tenant, and creates it if necessary.
func (s *Scheduler) Tenant(id outbox.ID) *Tenant {
	t := s.tenants[id]
	if t == nil {
		t = &Tenant{ID: id}
		s.tenants[id] = t
	}
	return t
}

// forgetTenants drops, when there are too many records, those of tenants that have no jobs in hand and have not claimed
// for shareTime. No plan is being made or carried out that refers to them.
func (s *Scheduler) forgetTenants(now time.Time) {
	if len(s.tenants) < 4*maxCursors {
		return
	}
	for id, t := range s.tenants {
		if t.InHand.Load() == 0 && now.Sub(t.used) > shareTime {
			delete(s.tenants, id)
		}
	}
}

// Several reports whether more than one tenant is known.
func (s *Scheduler) Several() bool { return len(s.tenants) > 1 }

// shared reports whether tenants share the queue now, or have recently. Where no program names tenants, only root uses
// the queue and gets all of it.
func (s *Scheduler) shared(now time.Time, all []claimant) bool {
	for _, c := range all {
		if c.due && c.ID != outbox.RootTenant {
			return true
		}
	}
	return now.Sub(s.othersUsed) < shareTime
}

// divide gives each tenant with due jobs the same part of the room, and each other tenant one place. No tenant may hold
// more than limit.
func divide(all []claimant, room, limit int) {
	dues := 0
	for i := range all {
		if all[i].due {
			dues++
		}
	}
	unsures := min(len(all)-dues, MaxNewFlows) // a claim asks as many tenants for one job as a survey finds
	part := 1
	switch {
	case dues > 0:
		part = max((room-min(unsures, room/2))/dues, 1)
	case len(all) > 0:
		part = max(room/len(all), 1)
	}
	give := func(w *claimant, n int) {
		n = max(min(n, room, limit-int(w.InHand.Load())-w.quota), 0)
		w.quota += n
		room -= n
	}
	for i := range all {
		switch {
		case all[i].due || dues == 0:
			give(&all[i], part)
		case unsures > 0:
			give(&all[i], 1)
			unsures--
		}
	}
	for i := range all { // the remainder
		if all[i].due || dues == 0 {
			give(&all[i], room)
		}
	}
}

// divideExpress gives a few places to each tenant that holds few jobs and has due ones, and then one place to each that
// may have some.
func divideExpress(all []claimant, room int) {
	give := func(c *claimant, most int) {
		if !c.HasMore {
			c.quota = max(min(most, Sparse-int(c.InHand.Load()), room), 0)
			room -= c.quota
		}
	}
	for i := range all {
		if all[i].due {
			give(&all[i], Sparse)
		}
	}
	for i := range all {
		if !all[i].due {
			give(&all[i], 1)
		}
	}
}

// split divides a tenant's quota between its jobs without a key and those with one: half each if both are due, an
// eighth for the side that may have none.
func (w *claimant) split() (plain, keyed int) {
	switch {
	case len(w.keyed) == 0 && !w.offered:
		return w.quota, 0
	case len(w.plain) == 0:
		return 0, w.quota
	case w.quota == 1:
		if w.keyedTurn {
			return 0, 1
		}
		return 1, 0
	}
	small := max(w.quota/8, 1)
	switch plainDue, keyedDue := anyDue(w.plain), anyDue(w.keyed) || w.offered; {
	case plainDue == keyedDue:
		return w.quota - w.quota/2, w.quota / 2
	case plainDue:
		return w.quota - small, small
	}
	return small, w.quota - small
}

func anyDue(cs []*Cursor) bool {
	return slices.ContainsFunc(cs, func(c *Cursor) bool { return c.state == due })
}

// Extent is how far a claim has looked.
type Extent struct {
	Front  bool // from where claims from the front begin (Scheduler.Front), not from each cursor
	More   bool // there may be due jobs that it did not look at
	Locked bool // it passed jobs because another transaction had locked them, or their key

	Took   time.Duration
	Looked int // jobs that it looked at
	// Few makes jobs with a key leave the room to jobs without one for a while: a claim that gets one or two of them
	// would delay thousands of the others. A failed claim of theirs has the same effect.
	Few bool
}

// Claimed learns from a claim that ended now what it cost, and which flows have more jobs.
func (s *Scheduler) Claimed(keyed bool, shares []Share, jobs []Leased, how Extent, now time.Time) {
	cs, front := s.cursors(keyed), s.Front(keyed)
	cs.noteTurn(shares)
	cs.cost(how.Front, now, how.Took, how.Looked)
	if keyed {
		if s.keyedPausedUntil = (time.Time{}); how.Few {
			s.keyedPausedUntil = now.Add(4 * soon)
		}
	}
	if len(jobs) > 0 || how.More || how.Locked || slices.ContainsFunc(shares, expectedJobs) {
		s.state = max(s.state, claimedSince)
	}
	counts, offered := map[Flow]int{}, map[outbox.ID]int{}
	for _, job := range jobs {
		if job.Offered {
			offered[job.Tenant]++
		} else {
			counts[job.Flow]++
		}
	}
	cs.claimed(jobs, now)
	cs.endedInTime(shares)
	for _, share := range shares {
		s.served, share.Tenant.keyedTurn = share.Tenant.ID, !keyed
		left := share.Quota - offered[share.Tenant.ID]
		for _, c := range share.Cursors {
			n := counts[c.Flow]
			left -= n
			if left <= 0 {
				c.state = due // it may have more, and so may flows of lower priority
				break
			}
			c.found = nil // the claim has looked at all of them, unless the queue was paused: StartFromFront
			switch {
			case how.More:
				c.state = due
			case how.Locked:
				c.passedLocked(now)
			case !keyed && (c.asks != nil || c.locked > 0 || n == 0 && c.state == due):
				s.ask(c, how.Front, c.From(how.Front, front))
			default:
				c.exhausted(how.Front, s.since)
			}
		}
		if how.Locked && len(share.Cursors) == 0 { // it looked at offered jobs only
			for _, c := range cs.sorted {
				if c.Tenant == share.Tenant.ID && c.state == drained {
					c.passedLocked(now)
				}
			}
		}
		s.noteUse(share, left, now)
	}
}

// noteUse notes how much of its quota a tenant has left.
func (s *Scheduler) noteUse(share Share, left int, now time.Time) {
	if left < share.Quota {
		if share.Tenant.used = now; share.Tenant.ID != outbox.RootTenant {
			s.othersUsed = now
		}
	}
	if left > 0 || share.Quota >= Sparse { // else it took all of a small quota, and may have had no more
		share.Tenant.HasMore = left <= 0
	}
}

// ask notes that a claim that began at from has got none of a flow's due jobs: another process has taken them, or a
// transaction has locked them and may leave them as they are. The next survey finds out.
func (s *Scheduler) ask(c *Cursor, front bool, from Position) {
	c.state, c.again, c.asks = drained, time.Time{}, &readRange{from.RunAt, front}
	s.state = max(s.state, claimedSince)
}

// expectedJobs reports whether due jobs were known. If a claim gets none of them, another process has taken them, and
// the jobs due after them are unknown. A claim that only confirms that there are none does not change what the last
// survey found.
func expectedJobs(s Share) bool { return len(s.Cursors) == 0 || anyDue(s.Cursors) }

// cursors returns the cursors of jobs with a key, or of the others.
func (s *Scheduler) cursors(keyed bool) *cursors {
	if keyed {
		return &s.keyed
	}
	return &s.plain
}

// all iterates over the cursors of both sets.
func (s *Scheduler) all() iter.Seq[*Cursor] {
	return func(yield func(*Cursor) bool) {
		for _, cs := range []*cursors{&s.plain, &s.keyed} {
			for _, c := range cs.sorted {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// AtFront reports whether a claim that begins now should begin at the front, not at the cursors.
func (s *Scheduler) AtFront(keyed bool, now time.Time) bool {
	return s.cursors(keyed).front.allows(now)
}

// Front returns where claims from the front begin now.
func (s *Scheduler) Front(keyed bool) (at Position) {
	if s.cursors(keyed).near && s.since.Valid {
		at.RunAt = s.since.Time.Add(-lateCommit)
	}
	return at
}

// Woken notes that any flow may have new jobs.
func (s *Scheduler) Woken() {
	s.state, s.looked = max(s.state, wokenSince), time.Now()
	s.plain.unsure()
	s.keyed.unsure()
}

// PollAfter returns how long until every flow must be looked at again if nothing wakes the queue before. A busy queue
// does not sleep that long, and surveys may miss a job: "A late commit between two surveys" (docs/races.md).
func (s *Scheduler) PollAfter(now time.Time, every time.Duration) time.Duration {
	return max(s.looked.Add(every).Sub(now), 0)
}

// Probe returns the plan of a claim of one job of any flow.
func (s *Scheduler) Probe() Plan {
	shares := func(cs *cursors) (all []Share) {
		for _, c := range cs.sorted {
			if n := len(all); n > 0 && all[n-1].Tenant.ID == c.Tenant {
				all[n-1].Cursors = append(all[n-1].Cursors, c)
			} else {
				all = append(all, Share{s.Tenant(c.Tenant), []*Cursor{c}, 1})
			}
		}
		return all
	}
	return Plan{Plain: shares(&s.plain), Keyed: shares(&s.keyed), Probe: true}
}

// StartFromFront makes the next claims find jobs before the cursors, or a search if claims begin near.
func (s *Scheduler) StartFromFront() {
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			if !cs.near {
				c.At = Position{}
			}
			c.asks, c.searched = nil, false // what the claims before have found proves nothing
		}
	}
	s.Woken()
}

// SleepEnded notes that the queue has slept as long as Sleep returned: either jobs have become due, or it is time to
// look at every flow.
func (s *Scheduler) SleepEnded(now time.Time) {
	found := false
	for c := range s.all() {
		if !c.next.IsZero() && !c.next.After(now) {
			c.state, c.next, found = due, time.Time{}, true
		}
	}
	if !found {
		s.Woken()
	}
}

// MayHaveDue reports whether there are due jobs, or may be.
func (s *Scheduler) MayHaveDue() bool {
	for c := range s.all() {
		if c.state != drained {
			return true
		}
	}
	return false
}

// Sleep returns how long the queue may sleep when there is nothing to claim: until the next job becomes due or an
// expensive statement may be repeated, and at most poll.
func (s *Scheduler) Sleep(now time.Time, poll time.Duration) time.Duration {
	until := func(d time.Duration) { poll = min(poll, max(d, 0)) }
	for c := range s.all() {
		if !c.next.IsZero() {
			until(c.next.Sub(now))
		}
	}
	if !s.gapsCovered {
		until(s.gapBudget.after(now))
	}
	if s.MayHaveDue() { // they wait for room, which the workers announce
		if s.state >= wokenSince {
			until(s.surveyed.Add(soon).Sub(now))
		}
		if pause := s.keyedPausedUntil.Sub(now); pause > 0 {
			until(pause)
		}
		if s.Several() { // until a tenant has the queue for itself again
			until(shareTime / 10)
		}
		return poll
	}
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		if cs.behind {
			until(cs.front.after(now))
		}
		if cs.near && !s.searching {
			until(s.nextSearch(cs).Sub(now))
		}
	}
	return poll
}

// Failed notes a claim that has ended in an error: it may have been too much for its deadline.
func (s *Scheduler) Failed(keyed bool, shares []Share, front bool, took time.Duration) {
	s.cursors(keyed).noteTurn(shares)
	for _, share := range shares {
		share.Tenant.keyedTurn = !keyed
	}
	if len(shares) == 1 { // of several, the next and smaller claims find out whose jobs the database refuses
		s.served = shares[0].Tenant.ID
	}
	cs, frontAt := s.cursors(keyed), s.Front(keyed)
	s.failure = func(why Failure) {
		if front {
			cs.front.fail(time.Now(), took, why != TooMuch)
			cs.behind = true
		}
		if why == TooMuch {
			cs.tooMuch(front, frontAt, shares)
		}
		// The next plan begins with jobs with a key again, and the others would never have their turn.
		if keyed && why != Unrelated {
			s.keyedPausedUntil = time.Now().Add(max(2*took, minRest))
		}
	}
}

// Failure is why a statement has failed. Only TooMuch says something about its cost.
type Failure int

const (
	TooMuch   Failure = iota // it may have been too much for its deadline
	Refused                  // the database refuses some of its rows
	Unrelated                // to the statement: the database was unreachable, or the connection broke
)

// ChargeFailure records what the failure of the last statement says about its cost.
func (s *Scheduler) ChargeFailure(why Failure) {
	if s.failure != nil {
		s.failure(why)
		s.failure = nil
	}
}
