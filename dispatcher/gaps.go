package dispatcher

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// While a snapshot is held, a walk reads the dead entries at the front of every lane, and is
// rarely made. Meanwhile findLanes finds what is due behind the positions of the known lanes
// and in the gaps between them. What was committed late, before the position of its lane,
// is left to the walk.

const (
	maxFound = 256 // unknown lanes a search
	// freeSearch is what a search may take: most of it goes to the lanes that are known. A
	// lane that others have drained is unknown, and full of dead entries.
	freeSearch = 20 * time.Millisecond
)

// findLanes makes a search if something may have come, or the last one was a while ago.
func (q *queue) findLanes(ctx context.Context, now time.Time) error {
	b := &q.shared.lanes
	if !b.woken && now.Sub(b.searched) < surveyInterval {
		return nil
	}
	if now.Before(b.searchPaid) {
		b.recall(now)
		return nil
	}
	b.woken, b.searched = false, now
	bound, cancel := bounded(ctx)
	defer cancel()
	params := b.gaps(now)
	params.Queue, params.MaxLanes = q.name, maxFound
	rows, err := q.db.FindLanes(bound, params)
	took := time.Since(now)
	if excess := min(took, b.searchTook) - freeSearch; excess > 0 {
		b.searchPaid = time.Now().Add(budget * excess)
	}
	b.searchTook = took
	if err != nil {
		b.woken, b.searchPaid = true, time.Now().Add(took) // not at once again
		return fmt.Errorf("look for new tenants in queue %s: %w", q.name, err)
	}
	b.noteFound(rows, now)
	return nil
}

// gaps are the known lanes, each with the position to look from, and what is between them.
func (b *laneBook) gaps(now time.Time) (p sqlgen.FindLanesParams) {
	names := slices.SortedFunc(maps.Keys(b.known), func(x, y laneName) int {
		return cmp.Or(bytes.Compare(x.tenant[:], y.tenant[:]), cmp.Compare(x.priority, y.priority))
	})
	last := laneName{priority: math.MinInt16}
	for _, name := range names {
		above := int32(math.MinInt16 - 1)
		if name.tenant == last.tenant {
			above = int32(last.priority)
		} else {
			p.LowTenantIds, p.LowPriorities = append(p.LowTenantIds, pgID(last.tenant)), append(p.LowPriorities, last.priority)
			p.HighTenantIds = append(p.HighTenantIds, pgID(name.tenant))
		}
		if below := int32(name.priority); below-above > 1 {
			p.WithinTenantIds, p.Above, p.Below = append(p.WithinTenantIds, pgID(name.tenant)), append(p.Above, above), append(p.Below, below)
		}
		last = name
		l := b.known[name]
		if l.due {
			continue
		}
		from := pgtype.Timestamptz{Time: l.from.runAt, Valid: true}
		id := l.from.id
		if now.Before(l.until) { // what was there is not for us
			from, id = b.asOf, outbox.ID{}
		}
		p.TenantIds, p.Priorities = append(p.TenantIds, pgID(l.tenant)), append(p.Priorities, l.priority)
		p.FromRunAt, p.FromID = append(p.FromRunAt, from), append(p.FromID, pgID(id))
	}
	highest := pgtype.UUID{Bytes: [16]byte(bytes.Repeat([]byte{255}, 16)), Valid: true}
	p.LowTenantIds, p.LowPriorities = append(p.LowTenantIds, pgID(last.tenant)), append(p.LowPriorities, last.priority)
	p.HighTenantIds = append(p.HighTenantIds, highest)
	return p
}

// noteFound takes in what a search has found.
func (b *laneBook) noteFound(rows []sqlgen.FindLanesRow, now time.Time) {
	end := rows[len(rows)-1] // of no tenant
	b.asOf = end.LookedAt
	for _, row := range rows[:len(rows)-1] {
		name := laneName{row.TenantID.Bytes, row.Priority}
		if row.DueInSeconds <= 0 && len(b.due) < maxDueLanes {
			b.noteDue(name, sqlgen.WalkLanesRow{RunAt: row.RunAt, NextInSeconds: row.DueInSeconds}, now)
			continue
		}
		b.lane(name, now) // the next search looks from its front on
		if row.DueInSeconds > 0 && row.DueInSeconds < pollForever.Seconds() {
			at := now.Add(time.Duration(row.DueInSeconds * float64(time.Second)))
			if b.next.Before(now) || at.Before(b.next) {
				b.next = at
			}
		}
	}
	b.order()
}

// walked is what a walk has told.
type walked struct {
	rows    []sqlgen.WalkLanesRow
	started time.Time
	took    time.Duration
	fresh   bool
	err     error
}

// awaitWalk waits for the walk that is made besides claims, if there is one.
func (b *laneBook) awaitWalk() {
	if b.beside != nil {
		<-b.beside
	}
}
