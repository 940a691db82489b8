package dispatcher

import (
	"bytes"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// scheduler decides what the next claim of a queue asks for, and how long the queue may
// sleep. It has a cursor for each tenant and priority in use, twice: for jobs without a key
// and for those with one. It knows no database and starts nothing; only the claim loop uses
// it.
//
// Room is divided among the tenants with due jobs, in rotation, as evenly as it can be. One
// of which nobody knows whether it has due jobs is asked for one. While several tenants use
// the queue, none may hold all of its workers (reservePart), and one that holds few is
// claimed for though there is no room (express): it need not wait until the buffer, which others
// have filled, has been worked off.
type scheduler struct {
	plain, keyed cursors
	tenants      map[outbox.ID]*tenant
	served       outbox.ID // whose turn was last
	concurrency  int

	keyedPause time.Time // until then jobs with a key leave the room to the others

	search   budget             // of surveys that look for tenants and priorities without a cursor
	searched bool               // the last survey did
	surveys  expected           // of surveys that did not
	since    pgtype.Timestamptz // the database's time of the last survey; NULL before the first
	surveyed time.Time          // when that was
	stale    bool               // something was claimed since
	woke     bool               // something may have come since
	partial  bool               // the last survey found flows, and there may be others
	failure  func(away bool)    // notes what a statement has cost that failed; nil: none did
}

// tenant is what is known of a tenant's use of a queue.
type tenant struct {
	id        outbox.ID
	inHand    atomic.Int64 // jobs claimed and not finished, without those gathered for batches
	used      time.Time    // when something of it was claimed last
	more      bool         // the last claim that was not for a few took all that it was allowed to
	keyedTurn bool         // who gets a single place: its jobs with a key, or the others
}

// hasMore reports whether it has more due jobs than it may hold to be one that holds few.
func (t *tenant) hasMore() bool { return t.more }

const (
	keyedPause = 20 * time.Millisecond
	// sparse is how many jobs a tenant may hold to be claimed for though there is no room.
	sparse = 8
	// maxExpress is how many jobs one claim may take while there is no room.
	maxExpress = 8 * sparse
	// reservePart of a queue's workers, one in so many, is reserved while tenants share the
	// queue: they take no job that waits in the buffer. Without it a tenant whose jobs take a
	// minute would make another's wait for as long as it takes one of them to end.
	reservePart = 16
	// shareTime is how long after its last claim a tenant counts as using the queue.
	shareTime = 10 * time.Second
	// maxUnsure is how many tenants a claim asks for one job each.
	maxUnsure = maxNewFlows
	// maxSharedKeyed is how many jobs with a key one claim takes, some milliseconds, while
	// tenants share: a job that comes meanwhile waits for the end of it.
	maxSharedKeyed = 128

	surveyInterval = 100 * time.Millisecond // between surveys while busy,
	surveyPause    = 5 * time.Millisecond   // or, if something may have come
)

func newScheduler(concurrency int) *scheduler {
	s := &scheduler{tenants: map[outbox.ID]*tenant{}, concurrency: concurrency}
	s.plain.add(flow{tenant: outbox.RootTenant}, time.Time{}, outbox.ID{}).state = unsure
	s.plain.costs.perJob, s.keyed.costs.perJob = firstCost, firstCost
	return s
}

// places is how many jobs a queue has room for.
type places struct {
	room     int // to be claimed now; 0 until that is worth a round trip
	express  int // for tenants that hold few, while room is 0
	capacity int // that may be in hand at all
}

// share is what a claim may take of a tenant: of all its cursors together no more than
// quota, the first ones first.
type share struct {
	tenant  *tenant
	cursors []*cursor
	quota   int
}

// claimPlan is what the next claim asks for.
type claimPlan struct {
	plain, keyed []share
	kinds        []string // that it is for
	shared       bool     // tenants share the queue: some workers are reserved
	probe        bool     // for one job, wherever it is: the scheduler learns nothing of it
}

func (p *claimPlan) empty() bool { return len(p.plain) == 0 && len(p.keyed) == 0 }

// room is how many jobs a claim takes of such shares of the plan.
func (p *claimPlan) room(shares []share) int {
	if p.probe {
		return 1
	}
	return quotas(shares)
}

func quotas(shares []share) (sum int) {
	for _, s := range shares {
		sum += s.quota
	}
	return sum
}

// claimant is a tenant that has due jobs, or may have.
type claimant struct {
	*tenant
	plain, keyed []*cursor
	offered      bool // jobs with a key were promoted, and no claim has looked at them
	due          bool
	quota        int
}

// plan divides what there is room for. offered are the tenants of promoted jobs.
func (s *scheduler) plan(now time.Time, p places, offered []outbox.ID) claimPlan {
	all := s.waiting(now, offered)
	made := claimPlan{shared: s.shared(now, all)}
	if made.shared {
		p.capacity -= s.concurrency / reservePart
	}
	if p.room > 0 {
		divide(all, p.room, p.capacity)
	} else if s.several() {
		divideExpress(all, p.express)
	}
	for i := range all {
		w := &all[i]
		if w.quota <= 0 {
			continue
		}
		plain, keyed := w.split()
		if made.shared {
			keyed = min(keyed, max(maxSharedKeyed/len(all), 1))
		}
		if plain > 0 {
			made.plain = append(made.plain, share{w.tenant, w.plain, plain})
		}
		if keyed > 0 {
			made.keyed = append(made.keyed, share{w.tenant, w.keyed, keyed})
		}
	}
	return made
}

// waiting are the tenants with due jobs, and those that may have some, in rotation: from
// the one after the tenant that was served last.
func (s *scheduler) waiting(now time.Time, offered []outbox.ID) (all []claimant) {
	of := map[outbox.ID]int{}
	turn := 0
	add := func(id outbox.ID, due bool) *claimant {
		at, found := of[id]
		if !found {
			at = len(all)
			of[id] = at
			all = append(all, claimant{tenant: s.tenant(id, now)})
		}
		all[at].due = all[at].due || due
		return &all[at]
	}
	for _, c := range s.plain.sorted {
		if c.state != drained {
			w := add(c.tenant, c.state == due)
			w.plain = append(w.plain, c)
		}
	}
	if len(all) == 0 || !now.Before(s.keyedPause) {
		for _, c := range s.keyed.sorted {
			if c.state != drained {
				w := add(c.tenant, c.state == due)
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
	slices.SortFunc(all, func(x, y claimant) int { return bytes.Compare(x.id[:], y.id[:]) })
	for turn < len(all) && bytes.Compare(all[turn].id[:], s.served[:]) <= 0 {
		turn++
	}
	return slices.Concat(all[turn:], all[:turn])
}

func (s *scheduler) tenant(id outbox.ID, now time.Time) *tenant {
	t := s.tenants[id]
	if t == nil {
		if len(s.tenants) >= 4*maxCursors {
			for id, t := range s.tenants {
				if t.inHand.Load() == 0 && now.Sub(t.used) > shareTime {
					delete(s.tenants, id)
				}
			}
		}
		t = &tenant{id: id}
		s.tenants[id] = t
	}
	return t
}

// several reports whether more than one tenant has used the queue at all.
func (s *scheduler) several() bool { return len(s.tenants) > 1 }

// shared reports whether tenants share the queue now, or have lately: a queue that only
// root uses, as where nobody names tenants, is all root's.
func (s *scheduler) shared(now time.Time, all []claimant) bool {
	for _, c := range all {
		if c.due && c.id != outbox.RootTenant {
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
		n = max(min(n, room, limit-int(w.inHand.Load())-w.quota), 0)
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
			c.quota = max(min(most, sparse-int(c.inHand.Load()), room), 0)
			room -= c.quota
		}
	}
	for i := range all {
		if all[i].due {
			give(&all[i], sparse)
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

func anyDue(cs []*cursor) bool {
	return slices.ContainsFunc(cs, func(c *cursor) bool { return c.state == due })
}

// extent is how far a claim has looked.
type extent struct {
	front  bool // from the first due job of each flow on, not from its cursor
	more   bool // there may be due jobs that it did not look at
	locked bool // it passed jobs by because somebody else had locked them, or their key
}

// claimed learns from a claim which flows have more. The jobs are those that it came to by
// its cursors.
func (s *scheduler) claimed(keyed bool, shares []share, jobs []leased, how extent, now time.Time) {
	cs := s.cursors(keyed)
	s.stale = true
	counts := map[flow]int{}
	for _, job := range jobs {
		counts[job.flow]++
	}
	cs.claimed(jobs, now)
	for _, share := range shares {
		s.served = share.tenant.id
		left := share.quota
		for _, c := range share.cursors {
			n := counts[c.flow]
			if left -= n; left <= 0 {
				c.state = due // it may have more, and so may those of lower priority
				break
			}
			switch {
			case how.more:
				c.state = due
			case how.locked:
				c.passedLocked(now)
			default:
				c.exhausted(how.front, s.since)
			}
		}
		if how.locked && len(share.cursors) == 0 { // it looked at offered jobs only
			for _, c := range cs.sorted {
				if c.tenant == share.tenant.id && c.state == drained {
					c.passedLocked(now)
				}
			}
		}
		if left < share.quota {
			share.tenant.used = now
		}
		if left > 0 || share.quota >= sparse { // else it took all of a few, and may have had no more
			share.tenant.more = left <= 0
		}
	}
}

// cursors are those of jobs with a key, or of the others.
func (s *scheduler) cursors(keyed bool) *cursors {
	if keyed {
		return &s.keyed
	}
	return &s.plain
}

// atFront reports whether a claim that begins now is to begin at the front, not at the cursors.
func (s *scheduler) atFront(keyed bool, now time.Time) bool {
	return s.cursors(keyed).front.allows(now)
}

// cost notes what a claim took that ended now and looked at so many jobs.
func (s *scheduler) cost(keyed, front bool, now time.Time, took time.Duration, jobs int) {
	s.cursors(keyed).cost(front, now, took, jobs)
}

// pauseKeyed leaves the room to jobs without a key for a while, if there are any: a claim of the others that gets a job
// or two would hold up thousands of these.
func (s *scheduler) pauseKeyed(now time.Time, pause bool) {
	if s.keyedPause = (time.Time{}); pause {
		s.keyedPause = now.Add(keyedPause)
	}
}

// surveyAfter is the database's time of the last survey; NULL before the first.
func (s *scheduler) surveyAfter() pgtype.Timestamptz { return s.since }

// known are the flows with a cursor.
func (s *scheduler) known(keyed bool) (tenants []outbox.ID, priorities []int16) {
	for _, c := range s.cursors(keyed).sorted {
		tenants, priorities = append(tenants, c.tenant), append(priorities, c.priority)
	}
	return tenants, priorities
}

// gaps are the ranges without one.
func (s *scheduler) gaps(keyed bool) gaps { return s.cursors(keyed).gaps(s.served) }

// woken notes that any flow may have jobs that were not there before.
func (s *scheduler) woken() {
	s.woke = true
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			c.state = max(c.state, unsure)
		}
	}
}

// probe plans claims for one job, wherever it is: one of jobs without a key, and one of
// those with one.
func (s *scheduler) probe(now time.Time) (plain, keyed claimPlan) {
	shares := func(cs *cursors) (all []share) {
		for _, c := range cs.sorted {
			if n := len(all); n > 0 && all[n-1].tenant.id == c.tenant {
				all[n-1].cursors = append(all[n-1].cursors, c)
			} else {
				all = append(all, share{s.tenant(c.tenant, now), []*cursor{c}, 1})
			}
		}
		return all
	}
	return claimPlan{plain: shares(&s.plain), probe: true}, claimPlan{keyed: shares(&s.keyed), probe: true}
}

// startFromFront makes the next claims find what lies before the cursors.
func (s *scheduler) startFromFront() {
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			c.at = position{}
		}
	}
	s.woken()
}

// timer notes that the queue has slept as long as it was told to: jobs have become due, or
// it is time to look at everything.
func (s *scheduler) timer(now time.Time) {
	found := false
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			if !c.next.IsZero() && !c.next.After(now) {
				c.state, c.next, found = due, time.Time{}, true
			}
		}
	}
	if !found {
		s.woken()
	}
}

// waits reports whether there are due jobs, or may be.
func (s *scheduler) waits() bool {
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			if c.state != drained {
				return true
			}
		}
	}
	return false
}

// surveyDue reports whether it is time for a survey.
func (s *scheduler) surveyDue(now time.Time) bool {
	switch since := now.Sub(s.surveyed); {
	case s.surveyed.IsZero(), s.partial:
		return true
	case s.waits():
		return since >= surveyInterval || s.woke && since >= surveyPause
	}
	return s.stale || s.woke || !s.searched && s.search.allows(now)
}

// searches reports whether a survey that begins now is to look for what has no cursor. One
// that has found something is followed by others whatever they cost: it tells of one
// priority in a gap only, and a claim must not begin with the second most urgent job.
func (s *scheduler) searches(now time.Time) bool { return s.partial || s.search.allows(now) }

// longSurvey is how long a survey takes after which what is left to be found has to wait
// for the next one.
const longSurvey = time.Second

// surveyRow is what a survey tells of a flow.
type surveyRow struct {
	keyed bool
	flow
	unknown bool          // it has no cursor
	due     time.Duration // until its next job is due, unless it is unknown
}

// noteSurvey takes in a survey, and reports whether it has found something to claim.
func (s *scheduler) noteSurvey(rows []surveyRow, at pgtype.Timestamptz, searched bool, started, now time.Time) (found bool) {
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
	for _, row := range rows {
		cs := &s.plain
		if row.keyed {
			cs = &s.keyed
		}
		if row.unknown {
			cs.add(row.flow, now, s.served).state = due
			s.partial, found = took < longSurvey && len(cs.sorted) < maxCursors, true
			continue
		}
		c := cs.get(row.flow)
		switch {
		case c == nil: // forgotten just now
		case row.due <= 0:
			c.state, found = due, true
		case c.next.IsZero() || now.Add(row.due).Before(c.next):
			c.next = now.Add(row.due)
		}
	}
	return found
}

// sleep is how long the queue may sleep when nothing is to be claimed: until the next job
// becomes due, something expensive may be repeated, or for as long as poll.
func (s *scheduler) sleep(now time.Time, poll time.Duration) time.Duration {
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
	if s.waits() { // for room: the workers say when there is some
		if s.woke {
			until(s.surveyed.Add(surveyPause).Sub(now))
		}
		if pause := s.keyedPause.Sub(now); pause > 0 {
			until(pause)
		}
		if s.several() { // until a tenant has the queue for itself again
			until(shareTime / 10)
		}
		return poll
	}
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		if cs.near {
			until(cs.front.after(now))
		}
	}
	return poll
}

// failed notes a claim that has ended in an error: it may have been too much for its
// deadline.
func (s *scheduler) failed(keyed, front bool, took time.Duration) {
	if cs := s.cursors(keyed); front {
		s.failure = func(away bool) { cs.front.fail(time.Now(), took, away); cs.near = true }
	}
}

// surveyFailed is failed for a survey.
func (s *scheduler) surveyFailed(searched bool, took time.Duration) {
	if searched {
		s.failure = func(away bool) { s.search.fail(time.Now(), took, away); s.searched = false }
	}
}

// settleFailure notes what the statement has cost that failed last; away says that the
// database was, so that it tells nothing.
func (s *scheduler) settleFailure(away bool) {
	if s.failure != nil {
		s.failure(away)
		s.failure = nil
	}
}
