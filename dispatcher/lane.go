package dispatcher

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// laneBook remembers in which lanes there are due jobs of tenants other than root.
// A lane is one priority of one tenant, a range of their index.
//
// A walk hops from lane to lane, and so costs as much as there are lanes in use,
// however many jobs each holds. One statement of it is bounded; a lap around all
// lanes takes as many as it takes. It begins after the tenant that was served last,
// so that whoever comes behind the bound is next.
//
// As a full scan does in scan, a walk pays for dead entries at the front of each
// lane while some snapshot is held, and for lanes that wait for tomorrow. What it
// costs beyond what is free is followed by nineteen times as long without one, and
// meanwhile claims go on from where they were in the lanes that were in use last.
type laneBook struct {
	known  map[laneName]*lane // the ones used last, bounded
	due    []*lane            // tenants in falling order, and the priorities of each
	served outbox.ID          // whose turn was last

	stale   bool          // something may have come: a lap has to begin after it
	crowded bool          // more lanes are due than one statement tells of: each has one turn a lap
	paid    time.Time     // until then a walk is too dear
	took    time.Duration // the last walk
	failed  time.Duration // the last one that failed, since a lap was complete
	owed    bool          // one was asked for meanwhile
	walked  time.Time     // when the last one was made
	lap     lap
	since   pgtype.Timestamptz // the database's time when the last complete lap began; NULL before
	next    time.Time          // when the next job becomes due, by the last complete lap; zero: none known
	empty   bool               // the last complete lap found no lane at all
	settled time.Time          // since when it has been so

	beside     chan walked // a walk is being made besides claims, and will be told here
	woken      bool        // something may have come since the last search (gaps.go)
	searched   time.Time   // when that was made
	searchTook time.Duration
	searchPaid time.Time          // until then a search is too dear
	asOf       pgtype.Timestamptz // the database's time of the last search; NULL before
}

// lap is a walk around all lanes that has not come to its end.
type lap struct {
	under   bool
	at, end laneName // the lane reached; where the lap ends
	wrapped bool
	began   pgtype.Timestamptz
	next    time.Time
	lanes   int
}

type laneName struct {
	tenant   outbox.ID
	priority int16
}

type lane struct {
	laneName
	from  position // where the next claim begins
	past  position // jobs before it were looked at and were not for us; zero: none
	due   bool
	guess bool // no walk has said that it is due
	used  time.Time
	taken int       // jobs claimed: as many dead entries, perhaps
	blank int       // times in a row that it was due and gave nothing
	until time.Time // it is left alone so long for that
}

// position is a place in a lane.
type position struct {
	runAt time.Time
	id    outbox.ID
}

func (p position) before(other position) bool { return before(p.runAt, p.id, other.runAt, other.id) }

const (
	maxKnownLanes = 512
	maxWalk       = 1000 // lanes a statement
	maxDueLanes   = 256  // due ones
	sharedLinger  = 10 * time.Second
	recallFor     = 10 * time.Second // a lane that was not used for longer is found by a walk only
	firstBlank    = 10 * time.Millisecond
	longestBlank  = 5 * time.Second
)

func newLaneBook() laneBook { return laneBook{known: map[laneName]*lane{}} }

// noteDue takes in a lane whose first job is due.
func (b *laneBook) noteDue(name laneName, row sqlgen.WalkLanesRow, now time.Time) {
	l := b.lane(name, now)
	first := position{runAt: row.RunAt.Time}
	switch {
	case now.Before(l.until) && row.NextInSeconds > 0: // nothing but what was not for us
		b.lap.soonest(now, l.until.Sub(now).Seconds())
		return
	case now.Before(l.until): // something has become due since: begin with it, also if the next claim leaves the lane out
		l.from, l.past, l.until = position{runAt: b.since.Time}, position{}, time.Time{}
	case first.before(l.past):
		l.from = l.past
	default:
		l.from, l.past = first, position{}
	}
	l.guess = false
	b.addDue(l)
}

func (b *laneBook) addDue(l *lane) {
	if !l.due {
		l.due = true
		b.due = append(b.due, l)
	}
}

// recall has claims go on in the lanes that were in use last.
func (b *laneBook) recall(now time.Time) {
	for _, l := range b.known {
		if !l.due && len(b.due) < maxDueLanes && now.Sub(l.used) < recallFor && !now.Before(l.until) && !l.from.runAt.IsZero() {
			l.guess = true
			b.addDue(l)
		}
	}
	b.order()
}

// order keeps the lanes of a tenant together, the highest priority first.
func (b *laneBook) order() {
	slices.SortFunc(b.due, func(x, y *lane) int {
		return cmp.Or(bytes.Compare(y.tenant[:], x.tenant[:]), cmp.Compare(y.priority, x.priority))
	})
}

// lane returns the lane of a name, made if it is new. When there are too many, one that
// is idle is forgotten: it is found again. To find one costs its dead entries, so it is the
// one of which the fewest jobs were claimed.
func (b *laneBook) lane(name laneName, now time.Time) *lane {
	if l := b.known[name]; l != nil {
		return l
	}
	if len(b.known) >= maxKnownLanes {
		var idle *lane
		for _, l := range b.known {
			if !l.due && (idle == nil || cmp.Or(cmp.Compare(l.taken, idle.taken), l.used.Compare(idle.used)) < 0) {
				idle = l
			}
		}
		if idle != nil {
			delete(b.known, idle.laneName)
		}
	}
	l := &lane{laneName: name, used: now}
	b.known[name] = l
	return l
}

// tenants are those that have due jobs, from the one whose turn it is on.
func (b *laneBook) tenants() []share {
	var all []share
	turn := 0
	for i, l := range b.due {
		if i > 0 && b.due[i-1].tenant == l.tenant {
			last := &all[len(all)-1]
			last.lanes = append(last.lanes, l)
			continue
		}
		if bytes.Compare(l.tenant[:], b.served[:]) >= 0 {
			turn = len(all) + 1
		}
		all = append(all, share{tenant: l.tenant, lanes: []*lane{l}})
	}
	return slices.Concat(all[turn:], all[:turn])
}

// advance moves the lane's position to the last of its jobs among those claimed,
// which are in its order, and returns how many they are.
func (l *lane) advance(claimed []*attempt) (n int) {
	for _, a := range claimed {
		if int16(a.job.Priority) != l.priority {
			continue
		}
		n++
		if a.unused { // goes back: it must be found again
			continue
		}
		if at := (position{a.job.RunAt, a.job.ID}); l.from.before(at) {
			l.from = at
		}
	}
	if l.taken += n; n > 0 {
		l.used, l.blank, l.until = time.Now(), 0, time.Time{}
	}
	return n
}

// dropExhausted takes the lanes out that a claim has found the end of. If some are
// left out that may hold more, because it is others' turn, a lap has to follow.
func (b *laneBook) dropExhausted() {
	b.due = slices.DeleteFunc(b.due, func(l *lane) bool { return !l.due })
	b.stale = b.stale || b.crowded
}

// passLanes looks behind what a claim has looked at in lanes that gave nothing:
// their first jobs may be of kinds that have no handler here, or past their
// deadlines, or in somebody else's hands. What is left behind them is for the next
// claim; a lane at whose end it has come is left alone for a while, unless
// something more becomes due in it.
func (q *queue) passLanes(ctx context.Context, since time.Time) error {
	doubtful := q.shared.doubtful
	q.shared.doubtful = nil
	if len(doubtful) == 0 {
		return nil
	}
	p := sqlgen.PassLanesParams{Queue: q.name, Reach: laneReach}
	for i, l := range doubtful {
		p.Ats = append(p.Ats, int32(i))
		p.TenantIds = append(p.TenantIds, pgID(l.tenant))
		p.Priorities = append(p.Priorities, l.priority)
		p.FromRunAt = append(p.FromRunAt, pgtype.Timestamptz{Time: l.from.runAt, Valid: true})
		p.FromID = append(p.FromID, pgtype.UUID{Bytes: l.from.id, Valid: true})
	}
	bound, cancel := bounded(ctx)
	defer cancel()
	rows, err := q.db.PassLanes(bound, p)
	if err != nil {
		q.shared.lanes.stale = true
		return fmt.Errorf("look further in queue %s: %w", q.name, err)
	}
	now := time.Now()
	further := map[int32]position{}
	for _, row := range rows {
		further[row.At] = position{row.RunAt.Time, row.ID.Bytes}
	}
	for i, l := range doubtful {
		at, more := further[int32(i)]
		if more {
			l.from, l.past, l.used = at, at, now
			q.shared.lanes.addDue(l)
			continue
		}
		l.past = position{}
		l.until = now.Add(max(firstBlank<<min(l.blank, 6), min(budget*now.Sub(since), longestBlank)))
		l.blank++
		q.shared.lanes.wakeAt(l.until)
	}
	q.shared.lanes.order()
	return nil
}

func (b *laneBook) wakeAt(at time.Time) {
	for _, next := range []*time.Time{&b.next, &b.lap.next} { // the end of a lap under way is that of what was known before
		if next.IsZero() || at.Before(*next) {
			*next = at
		}
	}
}

// surveyShared is the survey's part for the tenants other than root. What a lap
// has found is told by it: nothing is asked here.
func (q *queue) surveyShared(now time.Time) (sleep time.Duration, more bool) {
	b := &q.shared.lanes
	sleep = q.pollInterval()
	if b.empty && !b.open() && !b.owed {
		if linger := b.settled.Add(sharedLinger).Sub(now); linger >= 0 {
			sleep = min(sleep, linger+time.Millisecond)
		} else {
			q.shared.on = false
		}
	}
	wide := b.paid.Sub(now)
	if b.beside != nil { // it wakes us when it has come to its end
		wide = max(wide, surveyInterval)
	}
	if next := b.next.Sub(now); !b.next.IsZero() && (next > 0 || wide <= 0) {
		sleep = min(sleep, max(next, 0))
	}
	if wide > 0 { // until then no walk can tell more
		if b.woken { // nor could a search yet
			sleep = min(sleep, max(b.searchPaid.Sub(now), 0))
		}
		return min(sleep, wide), len(b.due) > 0
	}
	if b.owed { // it was too dear when somebody woke us, and the time for it has come since
		sleep = 0
	}
	return sleep, len(b.due) > 0 || b.open() || b.owed
}
