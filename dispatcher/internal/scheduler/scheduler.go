// Package scheduler decides for one queue what the next claim asks for, whose turn it is, how far claims look, and how
// long the queue may sleep. It knows no database and starts nothing: it learns what claims and surveys have found.
//
// Without it one tenant's backlog holds up the others (posthaste bench tenants), and a forgotten transaction slows
// every claim down (row D1 of the scorecard). What is committed long after it was due waits for it: for a claim
// from the front.
package scheduler

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Scheduler decides what the next claim of a queue asks for, and how long the queue may
// sleep. It has a cursor for each tenant and priority in use, twice: for jobs without a key
// and for those with one. It knows no database and starts nothing; only the claim loop uses
// it.
//
// Room is divided among the tenants with due jobs, in rotation, as evenly as it can be. One
// of which nobody knows whether it has due jobs is asked for one. While several tenants use
// the queue, none may hold all of its workers (reservePart), and one that holds few is
// claimed for though there is no room (express): it need not wait until the buffer, which others
// have filled, has been worked off.
type Scheduler struct {
	plain, keyed cursors
	tenants      map[outbox.ID]*Tenant
	served       outbox.ID // whose turn was last
	concurrency  int

	keyedPause time.Time // until then jobs with a key leave the room to the others

	search   budget             // of surveys that look for tenants and priorities without a cursor
	searched bool               // the last survey did
	surveys  expected           // of surveys that did not
	since    pgtype.Timestamptz // the database's time of the last survey; NULL before the first
	surveyed time.Time          // when that was
	stale    bool               // something was claimed since, here or by another process
	woke     bool               // something may have come since
	looked   time.Time          // when any flow might have new jobs, last
	partial  bool               // the last survey found as many flows as it may: there may be others
	failure  func(away bool)    // notes what a statement has cost that failed; nil: none did
}

// Tenant is what is known of a tenant's use of a queue.
type Tenant struct {
	ID        outbox.ID
	InHand    atomic.Int64 // jobs claimed and not finished, without those gathered for batches
	used      time.Time    // when something of it was claimed last
	more      bool         // the last claim that was not for a few took all that it was allowed to
	keyedTurn bool         // who gets a single place: its jobs with a key, or the others
}

// HasMore reports whether it has more due jobs than it may hold to be one that holds few.
func (t *Tenant) HasMore() bool { return t.more }

const (
	keyedPause = 20 * time.Millisecond
	// failedPause is how long jobs with a key leave the room to the others, at least, after a claim of theirs has
	// failed.
	failedPause = time.Second
	// Sparse is how many jobs a tenant may hold to be claimed for though there is no room.
	Sparse = 8
	// MaxExpress is how many jobs one claim may take while there is no room.
	MaxExpress = 8 * Sparse
	// ExpressPart of a queue's workers, one in so many, is for express jobs only while tenants
	// share the queue: they take no job that waits in the buffer. Without it a tenant whose jobs take a
	// minute would make another's wait for as long as it takes one of them to end.
	ExpressPart = 16
	// shareTime is how long after its last claim a tenant counts as using the queue.
	shareTime = 10 * time.Second
	// maxUnsure is how many tenants a claim asks for one job each.
	maxUnsure = MaxNewFlows
	// maxSharedKeyed is how many jobs with a key one claim takes, some milliseconds, while
	// tenants share: a job that comes meanwhile waits for the end of it.
	maxSharedKeyed = 128

	surveyInterval = 100 * time.Millisecond // between surveys while busy,
	surveyPause    = 5 * time.Millisecond   // or, if something may have come
)

func New(concurrency int) *Scheduler {
	s := &Scheduler{tenants: map[outbox.ID]*Tenant{}, concurrency: concurrency}
	s.plain.add(Flow{Tenant: outbox.RootTenant}, time.Time{}, outbox.ID{}).state = unsure
	s.plain.costs.perJob, s.keyed.costs.perJob = firstCost, firstCost
	return s
}

// Places is how many jobs a queue has room for.
type Places struct {
	Room     int // to be claimed now; 0 until that is worth a round trip
	Express  int // for tenants that hold few, while room is 0
	Capacity int // that may be in hand at all
}

// Share is what a claim may take of a tenant: of all its cursors together no more than
// quota, the first ones first.
type Share struct {
	Tenant  *Tenant
	Cursors []*Cursor
	Quota   int
}

// Plan is what the next claim asks for.
type Plan struct {
	Plain, Keyed []Share
	Kinds        []string // that it is for
	Shared       bool     // tenants share the queue: some workers are for express jobs only
	Probe        bool     // for one job, wherever it is: the scheduler learns nothing of it
}

func (p *Plan) Empty() bool { return len(p.Plain) == 0 && len(p.Keyed) == 0 }

// Shares are those of jobs with a key, or without one.
func (p *Plan) Shares(keyed bool) []Share {
	if keyed {
		return p.Keyed
	}
	return p.Plain
}

// Room is how many jobs a claim takes of such shares of the plan.
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

// Plan divides what there is room for. offered are the tenants of promoted jobs.
func (s *Scheduler) Plan(now time.Time, p Places, offered []outbox.ID) Plan {
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
		if made.Shared {
			keyed = min(keyed, max(maxSharedKeyed/len(all), 1))
		}
		if plain > 0 {
			made.Plain = append(made.Plain, Share{w.Tenant, w.plain, plain})
		}
		if keyed > 0 {
			made.Keyed = append(made.Keyed, Share{w.Tenant, w.keyed, keyed})
		}
	}
	return made
}

// waiting are the tenants with due jobs, and those that may have some, in rotation: from
// the one after the tenant that was served last.
func (s *Scheduler) waiting(now time.Time, offered []outbox.ID) (all []claimant) {
	of := map[outbox.ID]int{}
	turn := 0
	add := func(id outbox.ID, due bool) *claimant {
		at, found := of[id]
		if !found {
			at = len(all)
			of[id] = at
			all = append(all, claimant{Tenant: s.Tenant(id, now)})
		}
		all[at].due = all[at].due || due
		return &all[at]
	}
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		if cs.behind && cs.front.allows(now) { // the next claim is to find what lies before any cursor
			cs.unsure()
		}
	}
	for _, c := range s.plain.sorted {
		if c.state != drained {
			w := add(c.Tenant, c.state == due)
			w.plain = append(w.plain, c)
		}
	}
	if len(all) == 0 || !now.Before(s.keyedPause) {
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

func (s *Scheduler) Tenant(id outbox.ID, now time.Time) *Tenant {
	t := s.tenants[id]
	if t == nil {
		if len(s.tenants) >= 4*maxCursors {
			for id, t := range s.tenants {
				if t.InHand.Load() == 0 && now.Sub(t.used) > shareTime {
					delete(s.tenants, id)
				}
			}
		}
		t = &Tenant{ID: id}
		s.tenants[id] = t
	}
	return t
}

// Several reports whether more than one tenant has used the queue at all.
func (s *Scheduler) Several() bool { return len(s.tenants) > 1 }

// shared reports whether tenants share the queue now, or have lately: a queue that only
// root uses, as where nobody names tenants, is all root's.
func (s *Scheduler) shared(now time.Time, all []claimant) bool {
	for _, c := range all {
		if c.due && c.ID != outbox.RootTenant {
			return true
		}
	}
	for id, t := range s.tenants {
		if id != outbox.RootTenant && now.Sub(t.used) < shareTime {
			return true
		}
	}
	return false
}

// divide gives each tenant with due jobs the same part of the room, and each other one
// place. No tenant may come to hold more than limit.
func divide(all []claimant, room, limit int) {
	dues := 0
	for i := range all {
		if all[i].due {
			dues++
		}
	}
	unsures := min(len(all)-dues, maxUnsure)
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
	for i := range all { // what could not be divided
		if all[i].due || dues == 0 {
			give(&all[i], room)
		}
	}
}

// divideExpress gives tenants that hold few and have due jobs a few more, and then each that
// may have some one place.
func divideExpress(all []claimant, room int) {
	give := func(c *claimant, most int) {
		if !c.more {
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

// split divides a tenant's quota between its jobs without a key and those with one: half
// each while both are due, an eighth for what may have none.
func (w *claimant) split() (plain, keyed int) {
	switch {
	case len(w.keyed) == 0 && !w.offered:
		return w.quota, 0
	case len(w.plain) == 0:
		return 0, w.quota
	case w.quota == 1:
		if w.keyedTurn = !w.keyedTurn; w.keyedTurn {
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
	Front  bool // from the first due job of each flow on, not from its cursor
	More   bool // there may be due jobs that it did not look at
	Locked bool // it passed jobs by because somebody else had locked them, or their key
}

// Claimed learns from a claim which flows have more.
func (s *Scheduler) Claimed(keyed bool, shares []Share, jobs []Leased, how Extent, now time.Time) {
	cs := s.cursors(keyed)
	s.stale = s.stale || len(jobs) > 0 || how.More || how.Locked || slices.ContainsFunc(shares, expectedJobs)
	counts, offered := map[Flow]int{}, map[outbox.ID]int{}
	for _, job := range jobs {
		if job.Offered {
			offered[job.Tenant]++
		} else {
			counts[job.Flow]++
		}
	}
	cs.claimed(jobs, now)
	for _, share := range shares {
		s.served = share.Tenant.ID
		left := share.Quota - offered[share.Tenant.ID]
		for _, c := range share.Cursors {
			n := counts[c.Flow]
			if left -= n; left <= 0 {
				c.state = due // it may have more, and so may those of lower priority
				break
			}
			switch {
			case how.More:
				c.state = due
			case how.Locked:
				c.passedLocked(now)
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
		if left < share.Quota {
			share.Tenant.used = now
		}
		if left > 0 || share.Quota >= Sparse { // else it took all of a few, and may have had no more
			share.Tenant.more = left <= 0
		}
	}
}

// expectedJobs reports whether due jobs were known of. If a claim gets none of them another process has, and nobody
// knows what is due after them. One that has only made sure that there are none changes nothing of what the last
// survey said.
func expectedJobs(s Share) bool { return len(s.Cursors) == 0 || anyDue(s.Cursors) }

// cursors are those of jobs with a key, or of the others.
func (s *Scheduler) cursors(keyed bool) *cursors {
	if keyed {
		return &s.keyed
	}
	return &s.plain
}

// AtFront reports whether a claim that begins now is to begin at the front, not at the cursors.
func (s *Scheduler) AtFront(keyed bool, now time.Time) bool {
	return s.cursors(keyed).front.allows(now)
}

// Front is where claims from the front begin now.
func (s *Scheduler) Front(keyed bool) (at Position) {
	if reach := s.cursors(keyed).reach; reach > 0 && s.since.Valid {
		at.RunAt = s.since.Time.Add(-reach)
	}
	return at
}

// Cost notes what a claim took that ended now and looked at so many jobs.
func (s *Scheduler) Cost(keyed, front bool, now time.Time, took time.Duration, jobs int) {
	s.cursors(keyed).cost(front, now, took, jobs)
}

// PauseKeyed leaves the room to jobs without a key for a while, if there are any: a claim of the others that gets a job
// or two would hold up thousands of these. So does a claim of theirs that has failed.
func (s *Scheduler) PauseKeyed(now time.Time, pause bool) {
	if s.keyedPause = (time.Time{}); pause {
		s.keyedPause = now.Add(keyedPause)
	}
}

// SurveyAfter is the database's time of the last survey; NULL before the first.
func (s *Scheduler) SurveyAfter() pgtype.Timestamptz { return s.since }

// Known are the flows with a cursor.
func (s *Scheduler) Known(keyed bool) (tenants []outbox.ID, priorities []int16) {
	for _, c := range s.cursors(keyed).sorted {
		tenants, priorities = append(tenants, c.Tenant), append(priorities, c.Priority)
	}
	return tenants, priorities
}

// Gaps are the ranges without one.
func (s *Scheduler) Gaps(keyed bool) Gaps { return s.cursors(keyed).gaps(s.served) }

// Woken notes that any flow may have jobs that were not there before.
func (s *Scheduler) Woken() {
	s.woke, s.looked = true, time.Now()
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		cs.unsure()
	}
}

// PollAfter is how long until any flow is to be looked at again, if nothing wakes the queue before. A busy queue does
// not sleep that long, and a survey shows only what has become due since the one before, not what was committed late:
//
//	producer  INSERT of a job that is due
//	survey    there is none of this flow that has become due since the last
//	producer  COMMIT, of which nobody hears
//	survey    this one was due before
func (s *Scheduler) PollAfter(now time.Time, every time.Duration) time.Duration {
	return max(s.looked.Add(every).Sub(now), 0)
}

// Probe plans claims for one job, wherever it is: one of jobs without a key, and one of
// those with one.
func (s *Scheduler) Probe(now time.Time) (plain, keyed Plan) {
	shares := func(cs *cursors) (all []Share) {
		for _, c := range cs.sorted {
			if n := len(all); n > 0 && all[n-1].Tenant.ID == c.Tenant {
				all[n-1].Cursors = append(all[n-1].Cursors, c)
			} else {
				all = append(all, Share{s.Tenant(c.Tenant, now), []*Cursor{c}, 1})
			}
		}
		return all
	}
	return Plan{Plain: shares(&s.plain), Probe: true}, Plan{Keyed: shares(&s.keyed), Probe: true}
}

// StartFromFront makes the next claims find what lies before the cursors.
func (s *Scheduler) StartFromFront() {
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			c.At = Position{}
		}
	}
	s.Woken()
}

// Timer notes that the queue has slept as long as Sleep said: jobs have become due, or
// it is time to look at everything.
func (s *Scheduler) Timer(now time.Time) {
	found := false
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			if !c.next.IsZero() && !c.next.After(now) {
				c.state, c.next, found = due, time.Time{}, true
			}
		}
	}
	if !found {
		s.Woken()
	}
}

// Waits reports whether there are due jobs, or may be.
func (s *Scheduler) Waits() bool {
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			if c.state != drained {
				return true
			}
		}
	}
	return false
}

// SurveyDue reports whether it is time for a survey.
func (s *Scheduler) SurveyDue(now time.Time) bool {
	switch since := now.Sub(s.surveyed); {
	case s.surveyed.IsZero(), s.partial:
		return true
	case s.Waits():
		return since >= surveyInterval || s.woke && since >= surveyPause
	}
	return s.stale || s.woke || !s.searched && s.search.allows(now)
}

// Searches reports whether a survey that begins now is to look for what has no cursor. One
// that has found as much as it may is followed by others whatever they cost: a claim must
// not begin with the second most urgent job.
func (s *Scheduler) Searches(now time.Time) bool { return s.partial || s.search.allows(now) }

// SurveyRow is what a survey has found of a flow.
type SurveyRow struct {
	Keyed bool
	Flow
	Unknown bool          // it has no cursor
	Due     time.Duration // until its next job is due, unless it is unknown
}

// NoteSurvey takes in a survey, and reports whether it has found something to claim.
func (s *Scheduler) NoteSurvey(rows []SurveyRow, at pgtype.Timestamptz, searched bool, started, now time.Time) (found bool) {
	took := now.Sub(started)
	if searched {
		s.search.spend(now, took-s.surveys.of(0))
		s.surveys.lower(took, 0)
	} else {
		s.surveys.learn(took, 0)
	}
	s.since, s.surveyed, s.searched, s.stale, s.woke, s.partial = at, now, searched, false, false, false
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			c.next = c.again
		}
	}
	unknown := 0
	for _, row := range rows {
		cs := &s.plain
		if row.Keyed {
			cs = &s.keyed
		}
		if row.Unknown {
			cs.add(row.Flow, now, s.served).state = due
			unknown++
			found = true
			s.partial = s.partial || unknown >= MaxNewFlows && len(cs.sorted) < maxCursors
			continue
		}
		c := cs.get(row.Flow)
		switch {
		case c == nil: // forgotten just now
		case row.Due <= 0:
			c.state, found = due, true
		case c.next.IsZero() || now.Add(row.Due).Before(c.next):
			c.next = now.Add(row.Due)
		}
	}
	return found
}

// Sleep is how long the queue may sleep when nothing is to be claimed: until the next job
// becomes due, something expensive may be repeated, or for as long as poll.
func (s *Scheduler) Sleep(now time.Time, poll time.Duration) time.Duration {
	until := func(d time.Duration) { poll = min(poll, max(d, 0)) }
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			if !c.next.IsZero() {
				until(c.next.Sub(now))
			}
		}
	}
	if !s.searched {
		until(s.search.after(now))
	}
	if s.Waits() { // for room: the workers say when there is some
		if s.woke {
			until(s.surveyed.Add(surveyPause).Sub(now))
		}
		if pause := s.keyedPause.Sub(now); pause > 0 {
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
	}
	return poll
}

// Failed notes a claim that has ended in an error: it may have been too much for its
// deadline.
func (s *Scheduler) Failed(keyed, front bool, took time.Duration) {
	cs := s.cursors(keyed)
	s.failure = func(away bool) {
		if front {
			if !away && cs.reach > 0 { // so far back it was too much before, whatever nearer ones have cost since
				cs.front.last = max(cs.front.last, took)
			}
			cs.front.fail(time.Now(), took, away)
			cs.behind = true
		}
		if away {
			return
		}
		cs.tooMuch(front)
		if keyed { // the next plan begins with the others, which would never have their turn
			s.keyedPause = time.Now().Add(max(2*took, failedPause))
		}
	}
}

// SurveyFailed is failed for a survey.
func (s *Scheduler) SurveyFailed(searched bool, took time.Duration) {
	if searched {
		s.failure = func(away bool) { s.search.fail(time.Now(), took, away); s.searched = false }
	}
}

// SettleFailure notes what the statement has cost that failed last; away says that the
// database was, so that it says nothing.
func (s *Scheduler) SettleFailure(away bool) {
	if s.failure != nil {
		s.failure(away)
		s.failure = nil
	}
}
