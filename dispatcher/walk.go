package dispatcher

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// lookForTenants walks if something may have come or nothing is left that is known.
func (q *queue) lookForTenants(ctx context.Context) error {
	b := &q.shared.lanes
	switch {
	case len(b.due) == 0 && b.open(),
		b.stale && !b.lap.under,
		b.woken && b.lap.under && (b.beside != nil || time.Now().Before(b.paid)), // a search is made meanwhile
		b.owed && !time.Now().Before(b.paid),
		!(b.crowded && b.lap.under) && time.Since(b.walked) >= surveyInterval:
		return q.walk(ctx)
	}
	return nil
}

// open reports whether a walk has to be made before it is known what is due.
func (b *laneBook) open() bool { return b.stale || b.lap.under }

// walk makes one statement of a lap. While that is dear, a search does instead, and the walk
// is made by a goroutine of its own: it would hold claims up for as long as it takes.
func (q *queue) walk(ctx context.Context) error {
	b := &q.shared.lanes
	now := time.Now()
	b.walked = now
	if b.beside != nil {
		select {
		case w := <-b.beside:
			b.beside, b.stale, b.woken = nil, true, true // what a search has found since may be missing
			return q.noteWalk(w)
		default:
			return q.findLanes(ctx, now)
		}
	}
	if now.Before(b.paid) {
		b.stale, b.owed = b.stale && b.lap.under, true
		return q.findLanes(ctx, now)
	}
	b.owed = false
	fresh := b.begin()
	params := sqlgen.WalkLanesParams{
		Queue: q.name, Wrapped: b.lap.wrapped, Since: b.since, MaxLanes: maxWalk, MaxDue: maxDueLanes,
		AtTenantID: pgID(b.lap.at.tenant), AtPriority: b.lap.at.priority,
		UntilTenantID: pgID(b.lap.end.tenant), UntilPriority: b.lap.end.priority,
	}
	if b.took < freeSearch {
		return q.noteWalk(q.walkOnce(ctx, params, fresh))
	}
	beside := make(chan walked, 1)
	b.beside = beside
	go func() {
		beside <- q.walkOnce(ctx, params, fresh)
		q.poke()
	}()
	return q.findLanes(ctx, now)
}

func (q *queue) walkOnce(ctx context.Context, params sqlgen.WalkLanesParams, fresh bool) walked {
	started := time.Now()
	bound, cancel := bounded(ctx)
	defer cancel()
	rows, err := q.db.WalkLanes(bound, params)
	return walked{rows, started, time.Since(started), fresh, err}
}

func (q *queue) noteWalk(w walked) error {
	b := &q.shared.lanes
	// One that is dear by itself was held up, as in scan. What a lap had cost that broke off
	// is not forgotten for its first statements, which may be cheap each time.
	before := &b.took
	if w.err != nil {
		before = &b.failed
		b.paid = time.Now().Add(w.took) // not at once again
	}
	if excess := min(w.took, *before) - freeExcess; excess > 0 {
		b.paid = time.Now().Add(budget * excess)
	}
	*before = w.took
	if w.err != nil {
		b.lap, b.stale = lap{}, true
		return fmt.Errorf("walk the tenants of queue %s: %w", q.name, w.err)
	}
	b.note(w.rows, w.started, w.fresh)
	return nil
}

// forgive takes back what was charged: the database was away, and no walk was too wide.
func (b *laneBook) forgive() bool {
	failed := b.failed > freeExcess
	if failed {
		b.paid, b.took, b.failed = time.Time{}, 0, 0
		b.searchPaid, b.searchTook = time.Time{}, 0
	}
	return failed
}

// begin begins a lap after the tenant that was served last, unless one is under way.
func (b *laneBook) begin() (fresh bool) {
	if b.lap.under {
		return false
	}
	after := laneName{b.served, math.MinInt16} // below all of its lanes
	b.lap = lap{under: true, at: after, end: after}
	b.stale = false
	return true
}

// note takes in what a statement of the lap has found.
func (b *laneBook) note(rows []sqlgen.WalkLanesRow, started time.Time, fresh bool) {
	end := rows[len(rows)-1] // of no tenant
	rows = rows[:len(rows)-1]
	if fresh {
		b.due = b.due[:0]
		for _, l := range b.known {
			l.due = false
		}
		b.lap.began = end.WalkedAt
	}
	due := 0
	for _, row := range rows {
		name := laneName{row.TenantID.Bytes, row.Priority}
		b.lap.at, b.lap.wrapped = name, row.Wrapped
		b.lap.lanes++
		b.lap.soonest(started, row.DueInSeconds)
		b.lap.soonest(started, row.NextInSeconds)
		b.lap.soonest(started, row.FutureInSeconds)
		if row.DueInSeconds <= 0 {
			due++
			b.noteDue(name, row, started)
		}
	}
	if len(rows) >= maxWalk || due >= maxDueLanes {
		b.crowded = b.crowded || due >= maxDueLanes
		if fresh && !b.crowded {
			b.recall(started) // they may lie behind a thousand that wait for tomorrow
		}
		b.order()
		return
	}
	b.crowded = b.crowded && !fresh
	b.order()
	if b.served.IsZero() && len(b.due) > 0 { // processes that start together do not march in step
		b.served = b.due[rand.IntN(len(b.due))].tenant
	}
	b.since, b.next, b.empty = b.lap.began, b.lap.next, b.lap.lanes == 0
	if !b.empty {
		b.settled = time.Now()
	}
	b.lap, b.failed = lap{}, 0
}

func (l *lap) soonest(now time.Time, seconds float64) {
	if seconds <= 0 || seconds > pollForever.Seconds() {
		return
	}
	if at := now.Add(time.Duration(seconds * float64(time.Second))); l.next.IsZero() || at.Before(l.next) {
		l.next = at
	}
}

// pollForever is more than any poll: what is due later need not be remembered.
const pollForever = 24 * time.Hour
