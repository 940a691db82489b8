package dispatcher

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// sharedLook is what a queue's claim loop knows of the jobs of tenants other than
// root. They have an index, a walk and a claiming statement of their own, so that
// the root tenant's pay nothing: a queue without any is not even looked at for
// them, but for a question that is part of the survey.
//
// What a claim may take is shared in three places:
//
//	claim    the room is divided evenly among the tenants that have due jobs, of
//	         which root is one; what one leaves, the others get in the next claim
//	turns    when there are more tenants than room, the next claim begins after
//	         the tenant that was served last
//	workers  the jobs of a tenant that left nothing wait in a lane of their own,
//	         and are taken in turns with the buffer, or by the slots that are kept
//	         for them (keep.go); and when the buffer is full a few are claimed all
//	         the same
//
// Only the claim loop uses it.
type sharedLook struct {
	on       bool      // there are such jobs, or have been lately
	lanes    laneBook  // where they are
	doubtful []*lane   // gave nothing though they were thought to hold due jobs: to be passed
	filled   tenantSet // took all that they might have: more of theirs is due
	turn     int       // whose turn it is when the room cannot be divided
}

// tenantSet is bounded: tenants that are not in it get a few jobs more.
type tenantSet map[outbox.ID]struct{}

const (
	maxTenantSet = 4096
	// sparse is how many jobs of a tenant may go ahead of the buffer at a time.
	sparse = 8
	// maxAhead is how many jobs one claim may take while there is no room.
	maxAhead = 64
	// laneReach jobs of a lane are looked at for some that have a handler here.
	laneReach = 2000
)

func newSharedLook() sharedLook {
	return sharedLook{lanes: newLaneBook(), filled: tenantSet{}}
}

// found notes that there are jobs of tenants other than root.
func (s *sharedLook) found() {
	s.on, s.lanes.stale, s.lanes.woken, s.lanes.settled = true, true, true, time.Now()
}

// woken notes that there may be something that was not there when it was looked.
func (s *sharedLook) woken() { s.lanes.stale, s.lanes.woken = s.on, s.on }

func (s tenantSet) set(tenant outbox.ID, in bool) {
	if !in {
		delete(s, tenant)
		return
	}
	if len(s) >= maxTenantSet {
		clear(s)
	}
	s[tenant] = struct{}{}
}

func (s tenantSet) has(tenant outbox.ID) bool {
	_, ok := s[tenant]
	return ok
}

// share is what a claim may take of a tenant: of all its lanes together no more
// than quota, the first ones first.
type share struct {
	tenant outbox.ID
	lanes  []*lane
	quota  int
}

// claimShares divides the room between root and the other tenants. It returns how
// many jobs it got.
func (q *queue) claimShares(ctx context.Context, db within, room int, hand func(*haul) error) (int, error) {
	s := &q.shared
	if !db.limits { // a limited claim has looked before it held the queue
		if err := q.lookForTenants(ctx); err != nil {
			return 0, err
		}
	}
	claimed := 0
	tenants := s.lanes.tenants()
	if part := s.part(room, len(tenants)); part > 0 {
		n, err := q.claimShared(ctx, db, divide(tenants, part), part, hand)
		if err != nil {
			return 0, err
		}
		claimed = n
	}
	if room -= claimed; room == 0 {
		return claimed, nil
	}
	n, err := q.claimRoot(ctx, db, room, hand)
	return claimed + n, err
}

// part is how much of the room the tenants other than root may take: as much each
// as root. While it is not known that root has more, an eighth is kept for finding
// out. What cannot be divided goes to each side in turn.
func (s *sharedLook) part(room, tenants int) int {
	if tenants == 0 {
		return 0
	}
	s.turn++
	if s.filled.has(outbox.RootTenant) || room == 1 {
		return (room*tenants + s.turn%(tenants+1)) / (tenants + 1)
	}
	return room - max(room/8, 1)
}

// noteRoot is note for a claim of jobs of the root tenant.
func (s *sharedLook) noteRoot(claimed []*attempt, room int) {
	filled := len(claimed) >= room
	s.filled.set(outbox.RootTenant, filled)
	for _, a := range claimed {
		a.ahead = !filled && len(claimed) <= sparse
	}
}

// divide gives each tenant the same part of the room, and the first ones, whose
// turn it is, what cannot be divided.
func divide(tenants []share, room int) []share {
	tenants = tenants[:min(len(tenants), room)]
	for i := range tenants {
		tenants[i].quota = room / len(tenants)
		if i < room%len(tenants) {
			tenants[i].quota++
		}
	}
	return tenants
}

// claimAhead leases a few jobs though there is no room, of tenants that wait for
// nothing else: they must not have to wait until the buffer has been worked off,
// which others have filled. Where no slot is kept for them, or about to become
// free, nothing is claimed: another process may have one. It returns how many it got.
func (q *queue) claimAhead(ctx context.Context) (int, error) {
	s := &q.shared
	room := max(min(maxAhead, q.prefetch())-len(q.ahead), q.kept.free())
	if room <= 0 {
		return 0, nil
	}
	claimed := 0
	if q.keyed.on {
		n, err := q.claimKeyedAhead(ctx, room)
		if err != nil || !q.shared.on || n == room {
			return n, err
		}
		claimed, room = n, room-n
	}
	if err := q.lookForTenants(ctx); err != nil {
		return claimed, err
	}
	db := within{q.pool, false}
	hand := func(h *haul) error {
		learn := h.learn
		h.learn = func() {
			learn()
			for _, a := range h.claimed { // there is no room for them in the buffer
				a.ahead = true
			}
		}
		return q.take(ctx, h)
	}
	var few []share
	for _, t := range s.lanes.tenants() {
		if !s.filled.has(t.tenant) && len(few) < room {
			few = append(few, t)
		}
	}
	if len(few) > 0 {
		n, err := q.claimShared(ctx, db, divide(few, min(room, sparse*len(few))), room, hand)
		claimed, room = claimed+n, room-n
		if err != nil {
			return claimed, err
		}
	}
	if room == 0 || s.filled.has(outbox.RootTenant) {
		return claimed, nil
	}
	claim := q.claimRoot
	if q.keyed.many { // those with a key that may go ahead have been claimed already
		claim = q.claimPlain
	}
	n, err := claim(ctx, db, min(room, sparse), hand)
	if n == 0 && err == nil && q.keyed.on && !q.keyed.many && q.keyed.again { // it was not the turn of those with a key
		n, err = claim(ctx, db, min(room, sparse), hand)
	}
	return claimed + n, err
}

// claimShared leases jobs of tenants other than root.
func (q *queue) claimShared(ctx context.Context, db within, shares []share, room int, hand func(*haul) error) (int, error) {
	started := time.Now()
	p := q.shareParams(shares)
	bound, cancel := bounded(context.WithoutCancel(ctx)) // as in claimPlain
	defer cancel()
	rows, _ := db.Query(bound, sqlgen.ClaimShared, p.Worker, p.LeaseTtl, p.TenantIds, p.Quotas, p.Firsts, p.Lasts, // its error is also that of Err
		p.Priorities, p.FromRunAt, p.FromID, p.Queue, p.Reach, p.Kinds, db.limits, int32(room))
	h := q.readClaim(rows, room, started, nil)
	h.learn = func() {
		q.shared.doubtful = q.shared.note(shares, h.claimed)
		takeTurns(h.claimed)
	}
	if err := hand(h); err != nil || db.limits { // a limited claim passes when it has let go of the queue
		return len(h.claimed), err
	}
	return len(h.claimed), q.passLanes(ctx, started)
}

func (q *queue) shareParams(shares []share) sqlgen.ClaimSharedParams {
	p := sqlgen.ClaimSharedParams{
		Worker: q.worker, LeaseTtl: interval(q.config.LeaseTTL), Queue: q.name, Kinds: q.claimable(), Reach: laneReach,
	}
	for _, share := range shares {
		p.TenantIds, p.Quotas = append(p.TenantIds, pgID(share.tenant)), append(p.Quotas, int32(share.quota))
		p.Firsts = append(p.Firsts, int32(len(p.Priorities)+1))
		for _, l := range share.lanes {
			p.Priorities = append(p.Priorities, l.priority)
			p.FromRunAt = append(p.FromRunAt, pgtype.Timestamptz{Time: l.from.runAt, Valid: true})
			p.FromID = append(p.FromID, pgtype.UUID{Bytes: l.from.id, Valid: true})
		}
		p.Lasts = append(p.Lasts, int32(len(p.Priorities)))
	}
	return p
}

// note learns from a claim which of the tenants have more and how far their lanes
// were taken, and marks the jobs of those that have not to go ahead. It returns
// the lanes that were thought to hold due jobs and gave none.
func (s *sharedLook) note(shares []share, claimed []*attempt) (doubtful []*lane) {
	slices.SortFunc(claimed, byUrgency) // UPDATE … RETURNING promises no order
	of := map[outbox.ID][]*attempt{}
	for _, a := range claimed {
		of[a.job.Tenant] = append(of[a.job.Tenant], a)
	}
	for _, share := range shares {
		s.lanes.served = share.tenant
		got := of[share.tenant]
		// Who took all of a part of one or two may have had no more than that: what
		// was known before still holds.
		if filled := len(got) >= share.quota; !filled || share.quota >= sparse {
			s.filled.set(share.tenant, filled)
		}
		for _, a := range got {
			a.ahead = !s.filled.has(share.tenant) && len(got) <= sparse
		}
		left := share.quota
		for _, l := range share.lanes {
			n := l.advance(got)
			if left -= n; left <= 0 {
				l.due = !s.lanes.crowded
				break // there may be more in this one
			}
			l.due = false
			if n == 0 && !l.guess {
				doubtful = append(doubtful, l)
			}
		}
	}
	s.lanes.dropExhausted()
	return doubtful
}

// takeTurns orders jobs so that the first of each tenant come before the second
// of any.
func takeTurns(claimed []*attempt) {
	rank := make(map[*attempt]int, len(claimed))
	seen := map[outbox.ID]int{}
	for _, a := range claimed { // by urgency
		rank[a] = seen[a.job.Tenant]
		seen[a.job.Tenant]++
	}
	if len(seen) > 1 {
		slices.SortStableFunc(claimed, func(a, b *attempt) int { return cmp.Compare(rank[a], rank[b]) })
	}
}
