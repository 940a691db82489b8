package dispatcher

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// numbered is a tenant; 0 is root.
func numbered(n int) outbox.ID {
	if n == 0 {
		return outbox.RootTenant
	}
	return outbox.ID{0: 1, 1: byte(n >> 8), 2: byte(n), 15: 9}
}

// schedulerOf knows due jobs of so many tenants, root among them.
func schedulerOf(tenants int, state flowState) *scheduler {
	s := newScheduler(64)
	for n := range tenants {
		s.plain.add(flow{tenant: numbered(n)}, time.Now(), outbox.ID{}).state = state
	}
	return s
}

func roomFor(n int) places { return places{room: n, capacity: 1 << 20} }

// got makes a claim's answer: of each share so many jobs, at most its quota.
func got(shares []share, each int) (jobs []leased) {
	for _, share := range shares {
		for n := range min(each, share.quota) {
			jobs = append(jobs, candidate(share.tenant.id, share.cursors[0].priority, time.Now(), byte(n)))
		}
	}
	return jobs
}

// However small the room of a claim, every tenant is served before one is served for the
// second time more, and the room is used up. Root is a tenant like the others.
func TestTenantsTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tenants := rapid.IntRange(1, 300).Draw(t, "tenants")
		s := schedulerOf(tenants, due)
		served := map[outbox.ID]int{}
		for range rapid.IntRange(1, 30).Draw(t, "claims") {
			room := rapid.IntRange(1, 400).Draw(t, "room")
			p := s.plan(time.Now(), roomFor(room), nil)
			left := room
			for i, share := range p.plain {
				if share.quota < room/tenants || i > 0 && share.quota > room/tenants+room%tenants {
					t.Fatalf("a quota of %d of %d among %d", share.quota, room, tenants)
				}
				served[share.tenant.id]++
				left -= share.quota
			}
			if left != 0 {
				t.Fatalf("%d of a room of %d were given to nobody", left, room)
			}
			s.claimed(false, p.plain, got(p.plain, room), extent{front: true}, time.Now())
			least, most := 1<<30, 0
			for n := range tenants {
				least, most = min(least, served[numbered(n)]), max(most, served[numbered(n)])
			}
			if most > least+1 {
				t.Fatalf("one tenant was served %d times, another %d times", most, least)
			}
		}
	})
}

// A tenant of which nobody knows whether it has due jobs is asked for one, and takes no
// part of the room from those that have: a thousand idle tenants do not slow a busy one.
func TestIdleTenantsTakeNoRoom(t *testing.T) {
	s := schedulerOf(1000, drained)
	s.woken()
	s.plain.get(flow{tenant: numbered(3)}).state = due
	p := s.plan(time.Now(), roomFor(2000), nil)
	asked, busy := 0, 0
	for _, share := range p.plain {
		if share.tenant.id == numbered(3) {
			busy = share.quota
		} else if asked++; share.quota != 1 {
			t.Errorf("a tenant that may have nothing is given a quota of %d", share.quota)
		}
	}
	if asked != maxUnsure || busy != 2000-maxUnsure {
		t.Errorf("%d tenants are asked for a job, the busy one for %d; want %d and %d", asked, busy, maxUnsure, 2000-maxUnsure)
	}
	for range 4 { // in turns, all are asked
		s.claimed(false, p.plain, nil, extent{front: true}, time.Now())
		s.plain.get(flow{tenant: numbered(3)}).state = due
		p = s.plan(time.Now(), roomFor(2000), nil)
	}
	if len(p.plain) != 1 || p.plain[0].quota != 2000 {
		t.Errorf("after all were asked %d tenants are, want the busy one alone", len(p.plain))
	}
}

// The priorities of a tenant share its part, highest first.
func TestATenantsPrioritiesBelongTogether(t *testing.T) {
	s := schedulerOf(3, due)
	for _, priority := range []int16{-5, 7} {
		s.plain.add(flow{numbered(1), priority}, time.Now(), outbox.ID{}).state = due
	}
	s.served = numbered(2)
	p := s.plan(time.Now(), roomFor(30), nil)
	if len(p.plain) != 3 || p.plain[0].tenant.id != numbered(0) || p.plain[1].tenant.id != numbered(1) {
		t.Fatalf("shares = %+v, want those of root and the tenants 1 and 2", p.plain)
	}
	var of []int16
	for _, c := range p.plain[1].cursors {
		of = append(of, c.priority)
	}
	if !slices.Equal(of, []int16{7, 0, -5}) {
		t.Errorf("cursors of a tenant = %v, want 7, 0, -5", of)
	}
	// It took all of its quota from the first two: the second may have more, and so may the third.
	jobs := append(got([]share{{p.plain[1].tenant, p.plain[1].cursors[:1], 4}}, 4), got([]share{{p.plain[1].tenant, p.plain[1].cursors[1:2], 6}}, 6)...)
	s.claimed(false, p.plain[1:2], jobs, extent{front: true}, time.Now())
	for priority, want := range map[int16]flowState{7: drained, 0: due, -5: due} {
		if got := s.plain.get(flow{numbered(1), priority}).state; got != want {
			t.Errorf("priority %d: %v, want %v", priority, got, want)
		}
	}
}

// A tenant whose jobs with a key and without are both due has half of its part for each;
// the smallest room is given to either in turn.
func TestJobsWithAndWithoutAKeyShareATenantsPart(t *testing.T) {
	s := schedulerOf(2, due)
	s.keyed.add(flow{tenant: numbered(1)}, time.Now(), outbox.ID{}).state = due
	p := s.plan(time.Now(), roomFor(40), nil)
	if len(p.plain) != 2 || len(p.keyed) != 1 || p.plain[1].quota != 10 || p.keyed[0].quota != 10 {
		t.Errorf("plain %+v, keyed %+v; want 20 and 10, and 10", p.plain, p.keyed)
	}
	s = newScheduler(64)
	s.plain.add(flow{tenant: numbered(0)}, time.Now(), outbox.ID{}).state = due
	s.keyed.add(flow{tenant: numbered(0)}, time.Now(), outbox.ID{}).state = due
	with, without := 0, 0
	for range 10 {
		p := s.plan(time.Now(), roomFor(1), nil)
		with, without = with+quotas(p.keyed), without+quotas(p.plain)
	}
	if with != 5 || without != 5 {
		t.Errorf("of ten single places %d go to jobs with a key, %d to others", with, without)
	}
}

// While tenants share a queue none comes to hold all workers; a tenant that holds few is
// claimed for though there is no room, one that has many is not.
func TestReserveAndExpress(t *testing.T) {
	now := time.Now()
	s := schedulerOf(2, due)
	busy := s.tenant(numbered(1), now)
	busy.inHand.Store(50)
	s.plain.get(flow{tenant: numbered(0)}).state = drained
	p := s.plan(now, places{room: 14, capacity: 64}, nil)
	if n := quotas(p.plain); n != 10 || !p.shared {
		t.Errorf("a tenant that holds 50 of 64 is given %d, want 10: four workers are reserved", n)
	}
	busy.inHand.Store(60)
	if p = s.plan(now, places{room: 4, capacity: 64}, nil); len(p.plain) != 0 {
		t.Errorf("a tenant that holds 60 of 64 is given %d", quotas(p.plain))
	}
	s.plain.get(flow{tenant: numbered(0)}).state = due
	if p = s.plan(now, places{room: 4, capacity: 64}, nil); len(p.plain) != 1 || p.plain[0].tenant.id != numbered(0) || p.plain[0].quota != 4 {
		t.Errorf("shares = %+v, want root's alone", p.plain)
	}
	busy.inHand.Store(500)
	backlog := []share{{busy, s.plain.sorted[1:], 20}}
	s.claimed(false, backlog, got(backlog, 20), extent{front: true}, now) // it may have more
	if p = s.plan(now, places{express: 20, capacity: 564}, nil); len(p.plain) != 1 || p.plain[0].quota != sparse {
		t.Errorf("without room, shares = %+v; want %d for root", p.plain, sparse)
	}
	s.tenant(numbered(0), now).inHand.Store(6)
	if p = s.plan(now, places{express: 20, capacity: 564}, nil); quotas(p.plain) != sparse-6 {
		t.Errorf("one that holds 6 is given %d more, want %d", quotas(p.plain), sparse-6)
	}
	busy.inHand.Store(3)
	if p = s.plan(now, places{express: 20, capacity: 564}, nil); len(p.plain) != 1 || p.plain[0].tenant.id != numbered(0) {
		t.Errorf("without room, one that has many more is claimed for: %+v", p.plain)
	}
	// What is due comes before what may be: it does not wait until all idle tenants were asked.
	many := schedulerOf(200, drained)
	many.woken()
	many.plain.get(flow{tenant: numbered(150)}).state = due
	p = many.plan(now, places{express: 20, capacity: 564}, nil)
	given := map[outbox.ID]int{}
	for _, share := range p.plain {
		given[share.tenant.id] = share.quota
	}
	if given[numbered(150)] != sparse || len(given) != 1+20-sparse {
		t.Errorf("without room %d tenants are given some, the one with due jobs %d; want %d and %d", len(given), given[numbered(150)], 21-sparse, sparse)
	}
	// Nobody but root has used the queue for a while: it is all root's.
	s = schedulerOf(1, due)
	s.tenant(numbered(1), now).used = now.Add(-shareTime)
	if p = s.plan(now, places{room: 64, capacity: 64}, nil); quotas(p.plain) != 64 || p.shared {
		t.Errorf("root alone is given %d of 64", quotas(p.plain))
	}
}

// What a survey tells decides how long the queue sleeps.
func TestASurveyTellsHowLongToSleep(t *testing.T) {
	now := time.Now()
	s := schedulerOf(2, drained)
	survey := func(rows ...surveyRow) bool {
		return s.noteSurvey(rows, pgtype.Timestamptz{Time: now, Valid: true}, true, now, now)
	}
	if survey() || s.sleep(now, time.Hour) != time.Hour || s.surveyDue(now) {
		t.Error("nothing is due: want to sleep until the poll")
	}
	if s.claimed(false, nil, nil, extent{front: true}, now); !s.surveyDue(now) {
		t.Error("no survey after a claim: it would tell what is due behind the jobs that were claimed")
	}
	if survey(surveyRow{flow: flow{tenant: numbered(1)}, due: time.Minute}) || s.sleep(now, time.Hour) != time.Minute {
		t.Errorf("sleeps %v, want until the job is due in a minute", s.sleep(now, time.Hour))
	}
	if s.timer(now.Add(time.Minute)); s.plain.get(flow{tenant: numbered(1)}).state != due || s.plain.get(flow{tenant: numbered(0)}).state != drained {
		t.Error("the timer has made another flow due than the one whose job is")
	}
	s.plain.get(flow{tenant: numbered(1)}).state = drained
	if !survey(surveyRow{flow: flow{tenant: numbered(7), priority: 3}, unknown: true}) || !s.surveyDue(now) {
		t.Error("a tenant was found: want it claimed for, and others looked for at once")
	}
	s.plain.get(flow{numbered(7), 3}).state = drained
	if s.timer(now.Add(time.Hour)); s.plain.get(flow{tenant: numbered(0)}).state != unsure || !s.surveyDue(now.Add(time.Hour)) {
		t.Error("a poll does not look at every flow")
	}
}

// While the search for new tenants is too expensive, and claims from the front are, the
// queue goes on without them, and wakes up when they are affordable.
func TestWhatIsTooExpensiveIsNotForgotten(t *testing.T) {
	now := time.Now()
	s := schedulerOf(1, drained)
	for range 2 {
		s.search.spend(now, 50*time.Millisecond)
		s.plain.front.spend(now, 80*time.Millisecond)
	}
	s.noteSurvey(nil, pgtype.Timestamptz{Time: now, Valid: true}, s.search.allows(now), now, now)
	if got := s.sleep(now, time.Hour); got != restFactor*50*time.Millisecond {
		t.Errorf("sleeps %v, want until the next search", got)
	}
	later := now.Add(restFactor * 50 * time.Millisecond)
	if !s.surveyDue(later) {
		t.Error("no search when it is affordable")
	}
	s.noteSurvey(nil, pgtype.Timestamptz{Time: later, Valid: true}, true, later, later)
	s.plain.cost(false, later, time.Millisecond, 1) // a claim that did not begin at the front
	if got := s.sleep(later, time.Hour); got != restFactor*30*time.Millisecond {
		t.Errorf("sleeps %v, want until the next claim from the front", got)
	}
	s.plain.cost(true, later, time.Millisecond, 1)
	if got := s.sleep(later, time.Hour); got != time.Hour {
		t.Errorf("sleeps %v after a claim from the front that was quick", got)
	}
}

// A claim from the front that comes to the end of a flow moves the cursor close to the
// time of the last survey: what it left is not for this process.
func TestACursorPassesWhatIsNotForUs(t *testing.T) {
	now := time.Now()
	s := schedulerOf(2, due)
	s.since = pgtype.Timestamptz{Time: now, Valid: true}
	p := s.plan(now, roomFor(10), nil)
	s.claimed(false, p.plain, nil, extent{}, now)
	for _, c := range s.plain.sorted {
		if !c.at.runAt.IsZero() {
			t.Error("a claim that did not begin at the front has passed jobs that it has not seen")
		}
	}
	s.woken()
	p = s.plan(now, roomFor(10), nil)
	s.claimed(false, p.plain, nil, extent{front: true}, now)
	for _, c := range s.plain.sorted {
		if want := now.Add(-lateCommit); !c.at.runAt.Equal(want) || c.state != drained {
			t.Errorf("cursor at %v, %v; want %v", c.at.runAt, c.state, want)
		}
	}
}

// The promoter, or another claim, has locked the row of the key of every job that a claim
// looks at. They are still due, and no survey tells of them, because it looks ahead of the
// one before it. So the cursor stays before them, and they are looked at again after 5 ms,
// 10 ms and so on, whatever is claimed meanwhile of those that the promoter offers.
func TestWhatIsLockedIsLookedAtAgain(t *testing.T) {
	for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
		s, now := newScheduler(64), time.Now()
		s.since = pgtype.Timestamptz{Time: now, Valid: true}
		c := s.keyed.add(flow{tenant: tenant}, now, outbox.ID{})
		c.state = due
		s.plain.get(flow{tenant: outbox.RootTenant}).state = drained
		offered := []share{{tenant: s.tenant(tenant, now), quota: 1}}
		for _, wait := range []time.Duration{lockedRetry, 2 * lockedRetry, 4 * lockedRetry} {
			p := s.plan(now, roomFor(100), nil)
			if len(p.keyed) != 1 {
				t.Fatalf("the plan has %d shares of jobs with a key, want one", len(p.keyed))
			}
			s.claimed(true, p.keyed, nil, extent{front: true, locked: true}, now)
			s.claimed(true, offered, got(offered, 0), extent{front: true}, now)
			s.noteSurvey(nil, s.since, true, now, now)
			if !c.at.runAt.IsZero() {
				t.Fatalf("the cursor has passed jobs that are due: it is at %v", c.at.runAt)
			}
			if got := s.sleep(now, time.Minute); got != wait {
				t.Fatalf("sleeps for %v, want %v", got, wait)
			}
			now = now.Add(wait)
			s.timer(now)
		}
		p := s.plan(now, roomFor(100), nil)
		s.claimed(true, p.keyed, nil, extent{front: true}, now)
		s.noteSurvey(nil, s.since, true, now, now)
		if got := s.sleep(now, time.Minute); got != time.Minute {
			t.Fatalf("sleeps for %v after a claim that passed nothing by, want a minute", got)
		}
		s.claimed(true, offered, nil, extent{front: true, locked: true}, now)
		s.noteSurvey(nil, s.since, true, now, now)
		if got := s.sleep(now, time.Minute); got != lockedRetry {
			t.Fatalf("sleeps for %v after a claim that passed an offered job by, want %v", got, lockedRetry)
		}
	}
}

// A claim of jobs with a key that fills its room looks no further the next time: what it
// passed over could have run. One that finds little to run looks twice as far.
func TestAClaimOfKeysLooksAsFarAsItHasTo(t *testing.T) {
	k := newKeyedClaims()
	for _, step := range []struct {
		claimed, room, looked int
		blocked               int32
		want                  int
	}{
		{0, 100, 200, 200, 400},
		{10, 100, 400, 390, 800},
		{100, 100, 800, 0, minReach},
		{90, 100, 112, 22, minReach},
		{10, 100, 200, 190, 400},
	} {
		k.note(tally{looked: int32(step.looked), blocked: step.blocked}, step.claimed, step.room, step.looked)
		if k.reach != step.want || k.fits != (step.blocked == 0) {
			t.Errorf("after %+v: reach = %d, fits = %v", step, k.reach, k.fits)
		}
	}
}

// Promoted jobs are offered to the next claim of their tenant, once.
func TestOffers(t *testing.T) {
	k := newKeyedClaims()
	for n := range 5 {
		k.offer(numbered(n%2), pgvalue.UUID(outbox.ID{15: byte(n)}))
	}
	if n := len(k.offeredOf()); n != 2 || k.offered() != 5 {
		t.Errorf("%d offers of %d tenants, want 5 of 2", k.offered(), n)
	}
	if n := len(k.takeOffers(numbered(0), 2)); n != 2 || k.offered() != 3 {
		t.Errorf("took %d, left %d; want 2 and 3", n, k.offered())
	}
	if n := len(k.takeOffers(numbered(0), 9)); n != 1 || len(k.offeredOf()) != 1 {
		t.Errorf("took %d, want the last one", n)
	}
}
