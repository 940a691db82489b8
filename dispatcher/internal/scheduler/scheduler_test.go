package scheduler

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/outbox"
)

// numbered returns a tenant's id; 0 is root.
func numbered(n int) outbox.ID {
	if n == 0 {
		return outbox.RootTenant
	}
	return outbox.ID{0: 1, 1: byte(n >> 8), 2: byte(n), 15: 9}
}

// schedulerOf returns a scheduler that knows due jobs of this many tenants, root among them.
func schedulerOf(tenants int, state flowState) *Scheduler {
	s := New(64)
	for n := range tenants {
		s.plain.add(Flow{Tenant: numbered(n)}, time.Now(), outbox.ID{}).state = state
	}
	return s
}

func roomFor(n int) Places { return Places{Room: n, Capacity: 1 << 20} }

// got returns a claim's answer: for each share each jobs, at most its quota.
func got(shares []Share, each int) (jobs []Leased) {
	for _, share := range shares {
		for n := range min(each, share.Quota) {
			jobs = append(jobs, candidate(share.Tenant.ID, share.Cursors[0].Priority, time.Now(), byte(n)))
		}
	}
	return jobs
}

// However small the room of a claim, no tenant is served twice before every tenant is served once, and the room is used
// up. Root is a tenant like the others.
func TestTenantsTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tenants := rapid.IntRange(1, 300).Draw(t, "tenants")
		s := schedulerOf(tenants, due)
		served := map[outbox.ID]int{}
		for range rapid.IntRange(1, 30).Draw(t, "claims") {
			room := rapid.IntRange(1, 400).Draw(t, "room")
			p := s.Plan(time.Now(), roomFor(room), nil)
			left := room
			for i, share := range p.Plain {
				if share.Quota < room/tenants || i > 0 && share.Quota > room/tenants+room%tenants {
					t.Fatalf("a quota of %d of %d among %d", share.Quota, room, tenants)
				}
				served[share.Tenant.ID]++
				left -= share.Quota
			}
			if left != 0 {
				t.Fatalf("%d of a room of %d were given to nobody", left, room)
			}
			s.Claimed(false, p.Plain, got(p.Plain, room), Extent{Front: true}, time.Now())
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

// A tenant that may have due jobs is asked for one, and takes no part of the room from tenants that have some: a
// thousand idle tenants do not slow a busy one.
func TestIdleTenantsTakeNoRoom(t *testing.T) {
	s := schedulerOf(1000, drained)
	s.Woken()
	s.plain.get(Flow{Tenant: numbered(3)}).state = due
	p := s.Plan(time.Now(), roomFor(2000), nil)
	asked, busy := 0, 0
	for _, share := range p.Plain {
		if share.Tenant.ID == numbered(3) {
			busy = share.Quota
		} else if asked++; share.Quota != 1 {
			t.Errorf("a tenant that may have nothing is given a quota of %d", share.Quota)
		}
	}
	if asked != MaxNewFlows || busy != 2000-MaxNewFlows {
		t.Errorf("%d tenants are asked for a job, the busy one for %d; want %d and %d", asked, busy, MaxNewFlows, 2000-MaxNewFlows)
	}
	for range 4 { // in turns, all are asked
		s.Claimed(false, p.Plain, nil, Extent{Front: true}, time.Now())
		s.plain.get(Flow{Tenant: numbered(3)}).state = due
		p = s.Plan(time.Now(), roomFor(2000), nil)
	}
	if len(p.Plain) != 1 || p.Plain[0].Quota != 2000 {
		t.Errorf("after all were asked %d tenants are, want the busy one alone", len(p.Plain))
	}
}

// The priorities of a tenant share its part, highest first.
func TestATenantsPrioritiesBelongTogether(t *testing.T) {
	s := schedulerOf(3, due)
	for _, priority := range []int16{-5, 7} {
		s.plain.add(Flow{numbered(1), priority}, time.Now(), outbox.ID{}).state = due
	}
	s.served = numbered(2)
	p := s.Plan(time.Now(), roomFor(30), nil)
	if len(p.Plain) != 3 || p.Plain[0].Tenant.ID != numbered(0) || p.Plain[1].Tenant.ID != numbered(1) {
		t.Fatalf("shares = %+v, want those of root and the tenants 1 and 2", p.Plain)
	}
	var of []int16
	for _, c := range p.Plain[1].Cursors {
		of = append(of, c.Priority)
	}
	if !slices.Equal(of, []int16{7, 0, -5}) {
		t.Errorf("cursors of a tenant = %v, want 7, 0, -5", of)
	}
	// It took all of its quota from the first two: the second may have more, and so may the third.
	jobs := append(got([]Share{{p.Plain[1].Tenant, p.Plain[1].Cursors[:1], 4}}, 4), got([]Share{{p.Plain[1].Tenant, p.Plain[1].Cursors[1:2], 6}}, 6)...)
	s.Claimed(false, p.Plain[1:2], jobs, Extent{Front: true}, time.Now())
	for priority, want := range map[int16]flowState{7: drained, 0: due, -5: due} {
		if got := s.plain.get(Flow{numbered(1), priority}).state; got != want {
			t.Errorf("priority %d: %v, want %v", priority, got, want)
		}
	}
}

// A tenant whose jobs with a key and without are both due has half of its part for each; they take turns in the
// smallest room.
func TestJobsWithAndWithoutAKeyShareATenantsPart(t *testing.T) {
	s := schedulerOf(2, due)
	s.keyed.add(Flow{Tenant: numbered(1)}, time.Now(), outbox.ID{}).state = due
	p := s.Plan(time.Now(), roomFor(40), nil)
	if len(p.Plain) != 2 || len(p.Keyed) != 1 || p.Plain[1].Quota != 10 || p.Keyed[0].Quota != 10 {
		t.Errorf("plain %+v, keyed %+v; want 20 and 10, and 10", p.Plain, p.Keyed)
	}
	s = New(64)
	s.plain.add(Flow{Tenant: numbered(0)}, time.Now(), outbox.ID{}).state = due
	s.keyed.add(Flow{Tenant: numbered(0)}, time.Now(), outbox.ID{}).state = due
	with, without := 0, 0
	for range 10 {
		s.Plan(time.Now(), roomFor(1), nil) // a plan that is not carried out is no turn
		p := s.Plan(time.Now(), roomFor(1), nil)
		with, without = with+quotas(p.Keyed), without+quotas(p.Plain)
		keyed := len(p.Keyed) > 0
		shares := p.Shares(keyed)
		s.Claimed(keyed, shares, got(shares, 1), Extent{Front: true, More: true}, time.Now())
	}
	if with != 5 || without != 5 {
		t.Errorf("of ten single places %d go to jobs with a key, %d to others", with, without)
	}
}

// While tenants share a queue no tenant gets all workers; a tenant that holds few is claimed for even without room, and
// one that has many is not.
func TestReserveAndExpress(t *testing.T) {
	now := time.Now()
	s := schedulerOf(2, due)
	busy := s.Tenant(numbered(1))
	busy.InHand.Store(50)
	s.plain.get(Flow{Tenant: numbered(0)}).state = drained
	p := s.Plan(now, Places{Room: 14, Capacity: 64}, nil)
	if n := quotas(p.Plain); n != 10 || !p.Shared {
		t.Errorf("a tenant that holds 50 of 64 is given %d, want 10: four workers are reserved", n)
	}
	busy.InHand.Store(60)
	if p = s.Plan(now, Places{Room: 4, Capacity: 64}, nil); len(p.Plain) != 0 {
		t.Errorf("a tenant that holds 60 of 64 is given %d", quotas(p.Plain))
	}
	s.plain.get(Flow{Tenant: numbered(0)}).state = due
	if p = s.Plan(now, Places{Room: 4, Capacity: 64}, nil); len(p.Plain) != 1 || p.Plain[0].Tenant.ID != numbered(0) || p.Plain[0].Quota != 4 {
		t.Errorf("shares = %+v, want root's alone", p.Plain)
	}
	busy.InHand.Store(500)
	backlog := []Share{{busy, s.plain.sorted[1:], 20}}
	s.Claimed(false, backlog, got(backlog, 20), Extent{Front: true}, now) // it may have more
	if p = s.Plan(now, Places{Express: 20, Capacity: 564}, nil); len(p.Plain) != 1 || p.Plain[0].Quota != Sparse {
		t.Errorf("without room, shares = %+v; want %d for root", p.Plain, Sparse)
	}
	s.Tenant(numbered(0)).InHand.Store(6)
	if p = s.Plan(now, Places{Express: 20, Capacity: 564}, nil); quotas(p.Plain) != Sparse-6 {
		t.Errorf("one that holds 6 is given %d more, want %d", quotas(p.Plain), Sparse-6)
	}
	busy.InHand.Store(3)
	if p = s.Plan(now, Places{Express: 20, Capacity: 564}, nil); len(p.Plain) != 1 || p.Plain[0].Tenant.ID != numbered(0) {
		t.Errorf("without room, one that has many more is claimed for: %+v", p.Plain)
	}
	// Tenants with due jobs come before tenants that may have some: they do not wait until all idle tenants were asked.
	many := schedulerOf(200, drained)
	many.Woken()
	many.plain.get(Flow{Tenant: numbered(150)}).state = due
	p = many.Plan(now, Places{Express: 20, Capacity: 564}, nil)
	given := map[outbox.ID]int{}
	for _, share := range p.Plain {
		given[share.Tenant.ID] = share.Quota
	}
	if given[numbered(150)] != Sparse || len(given) != 1+20-Sparse {
		t.Errorf("without room %d tenants are given some, the one with due jobs %d; want %d and %d", len(given), given[numbered(150)], 21-Sparse, Sparse)
	}
	// No tenant except root has used the queue for a while: root gets all of it.
	s = schedulerOf(1, due)
	shares := []Share{{Tenant: s.Tenant(numbered(1)), Quota: 1}}
	s.Claimed(false, shares, []Leased{{Flow: Flow{Tenant: numbered(1)}, Offered: true}}, Extent{}, now.Add(-shareTime))
	if p = s.Plan(now.Add(-1), Places{Room: 64, Capacity: 64}, nil); !p.Shared {
		t.Error("root is given all though another tenant has used the queue lately")
	}
	if p = s.Plan(now, Places{Room: 64, Capacity: 64}, nil); quotas(p.Plain) != 64 || p.Shared {
		t.Errorf("root alone is given %d of 64", quotas(p.Plain))
	}
}

// The result of a survey decides how long the queue sleeps.
func TestASurveyTellsHowLongToSleep(t *testing.T) {
	now := time.Now()
	s := schedulerOf(2, drained)
	survey := func(rows ...SurveyRow) bool {
		return s.NoteSurvey(rows, pgtype.Timestamptz{Time: now, Valid: true}, true, now, now)
	}
	if survey() || s.Sleep(now, time.Hour) != time.Hour || s.SurveyDue(now) {
		t.Error("nothing is due: want to sleep until the poll")
	}
	s.plain.get(Flow{Tenant: numbered(1)}).state = unsure
	if s.Claimed(false, s.Plan(now, roomFor(1), nil).Plain, nil, Extent{Front: true}, now); s.SurveyDue(now) {
		t.Error("a survey after a claim that has found nothing, as was to be expected")
	}
	for _, gotten := range []int{0, 1} {
		survey()
		s.plain.get(Flow{Tenant: numbered(1)}).state = due
		shares := s.Plan(now, roomFor(2), nil).Plain
		if s.Claimed(false, shares, got(shares, gotten), Extent{Front: true}, now); !s.SurveyDue(now) {
			t.Errorf("no survey after a claim of %d of the due jobs: it would tell what is due behind them", gotten)
		}
	}
	if survey(SurveyRow{Flow: Flow{Tenant: numbered(1)}, Due: time.Minute}) || s.Sleep(now, time.Hour) != time.Minute {
		t.Errorf("sleeps %v, want until the job is due in a minute", s.Sleep(now, time.Hour))
	}
	if s.SleepEnded(now.Add(time.Minute)); s.plain.get(Flow{Tenant: numbered(1)}).state != due || s.plain.get(Flow{Tenant: numbered(0)}).state != drained {
		t.Error("the timer has made another flow due than the one whose job is")
	}
	s.plain.get(Flow{Tenant: numbered(1)}).state = drained
	if !survey(SurveyRow{Flow: Flow{Tenant: numbered(7), Priority: 3}, Unknown: true}) || s.SurveyDue(now) {
		t.Error("a tenant was found: want it claimed for at once")
	}
	most := make([]SurveyRow, MaxNewFlows)
	for n := range most {
		most[n] = SurveyRow{Flow: Flow{Tenant: numbered(8), Priority: int16(n)}, Unknown: true}
	}
	if !survey(most...) || !s.SurveyDue(now) {
		t.Error("as many priorities were found as may be: want others looked for at once, they may be more urgent")
	}
	for n := range maxCursors {
		s.plain.add(Flow{Tenant: numbered(8), Priority: int16(n)}, now, s.served)
	}
	keyed := make([]SurveyRow, MaxNewFlows)
	for n := range keyed {
		keyed[n] = SurveyRow{Flow: Flow{Tenant: numbered(8), Priority: int16(n)}, Keyed: true, Unknown: true}
	}
	beyond := SurveyRow{Flow: Flow{Tenant: numbered(8), Priority: -1}, Unknown: true}
	if !survey(append(keyed, beyond)...) || !s.SurveyDue(now) {
		t.Error("as many priorities with keys were found as may be: want others looked for, though no more without fit")
	}
	survey()
	for _, cs := range []*cursors{&s.plain, &s.keyed} {
		for _, c := range cs.sorted {
			c.state = drained
		}
	}
	s.plain.add(Flow{Tenant: numbered(0)}, now, s.served).state = drained
	if s.SleepEnded(now.Add(time.Hour)); s.plain.get(Flow{Tenant: numbered(0)}).state != unsure || !s.SurveyDue(now.Add(time.Hour)) {
		t.Error("a poll does not look at every flow")
	}
}

// While the search for new tenants is too expensive, and claims from the front are, the queue goes on without them, and
// wakes up when they are affordable.
func TestWhatIsTooExpensiveIsNotForgotten(t *testing.T) {
	now := time.Now()
	s := schedulerOf(1, drained)
	for range 2 {
		s.gapBudget.spend(now, 50*time.Millisecond)
		s.plain.front.spend(now, 80*time.Millisecond)
	}
	s.NoteSurvey(nil, pgtype.Timestamptz{Time: now, Valid: true}, s.gapBudget.allows(now), now, now)
	if got := s.Sleep(now, time.Hour); got != RestFactor*50*time.Millisecond {
		t.Errorf("sleeps %v, want until the next search", got)
	}
	later := now.Add(RestFactor * 50 * time.Millisecond)
	if !s.SurveyDue(later) {
		t.Error("no search when it is affordable")
	}
	s.NoteSurvey(nil, pgtype.Timestamptz{Time: later, Valid: true}, true, later, later)
	s.plain.cost(false, later, time.Millisecond, 1) // a claim that did not begin at the front
	if got := s.Sleep(later, time.Hour); got != RestFactor*30*time.Millisecond {
		t.Errorf("sleeps %v, want until the next claim from the front", got)
	}
	s.plain.cost(true, later, time.Millisecond, 1)
	if got := s.Sleep(later, time.Hour); got != time.Hour {
		t.Errorf("sleeps %v after a claim from the front that was quick", got)
	}
}

// A claim from the front that reaches the end of a flow moves the cursor close to the time of the last survey: the jobs
// that it left are not for this process, if the next survey finds that none of them was only locked.
func TestACursorPassesWhatIsNotForUs(t *testing.T) {
	now := time.Now()
	s := schedulerOf(2, due)
	s.since = pgtype.Timestamptz{Time: now, Valid: true}
	p := s.Plan(now, roomFor(10), nil)
	s.Claimed(false, p.Plain, nil, Extent{}, now)
	s.NoteSurvey(nil, s.since, true, now, now)
	for _, c := range s.plain.sorted {
		if !c.At.RunAt.IsZero() {
			t.Error("a claim that did not begin at the front has passed jobs that it has not seen")
		}
	}
	s.Woken()
	p = s.Plan(now, roomFor(10), nil)
	s.Claimed(false, p.Plain, nil, Extent{Front: true}, now)
	s.NoteSurvey(nil, s.since, true, now, now)
	for _, c := range s.plain.sorted {
		if want := now.Add(-lateCommit); !c.At.RunAt.Equal(want) || c.state != drained {
			t.Errorf("cursor at %v, %v; want %v", c.At.RunAt, c.state, want)
		}
	}
}

// The promoter, or another claim, has locked the row of the key of every job that a claim looks at. The jobs are still
// due, and no survey shows them, because a survey only looks beyond the one before it. So the cursor stays before them,
// and they are looked at again after 5 ms, 10 ms and so on, whatever offered jobs are claimed meanwhile.
func TestWhatIsLockedIsLookedAtAgain(t *testing.T) {
	for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
		s, now := New(64), time.Now()
		s.since = pgtype.Timestamptz{Time: now, Valid: true}
		c := s.keyed.add(Flow{Tenant: tenant}, now, outbox.ID{})
		c.state = due
		s.plain.get(Flow{Tenant: outbox.RootTenant}).state = drained
		offered := []Share{{Tenant: s.Tenant(tenant), Quota: 1}}
		for _, wait := range []time.Duration{soon, 2 * soon, 4 * soon} {
			p := s.Plan(now, roomFor(100), nil)
			if len(p.Keyed) != 1 {
				t.Fatalf("the plan has %d shares of jobs with a key, want one", len(p.Keyed))
			}
			s.Claimed(true, p.Keyed, nil, Extent{Front: true, Locked: true}, now)
			s.Claimed(true, offered, got(offered, 0), Extent{Front: true}, now)
			s.NoteSurvey(nil, s.since, true, now, now)
			if !c.At.RunAt.IsZero() {
				t.Fatalf("the cursor has passed jobs that are due: it is at %v", c.At.RunAt)
			}
			if got := s.Sleep(now, time.Minute); got != wait {
				t.Fatalf("sleeps for %v, want %v", got, wait)
			}
			now = now.Add(wait)
			s.SleepEnded(now)
		}
		p := s.Plan(now, roomFor(100), nil)
		s.Claimed(true, p.Keyed, nil, Extent{Front: true}, now)
		s.NoteSurvey(nil, s.since, true, now, now)
		if got := s.Sleep(now, time.Minute); got != time.Minute {
			t.Fatalf("sleeps for %v after a claim that passed nothing by, want a minute", got)
		}
		s.Claimed(true, offered, nil, Extent{Front: true, Locked: true}, now)
		s.NoteSurvey(nil, s.since, true, now, now)
		if got := s.Sleep(now, time.Minute); got != soon {
			t.Fatalf("sleeps for %v after a claim that passed an offered job by, want %v", got, soon)
		}
	}
}

// A survey that is too slow because of what it asks is not repeated as it was: before the next claim there would be no
// other.
func TestASurveyThatHasFailedAsksNoMore(t *testing.T) {
	s, now := New(64), time.Now()
	s.since = pgtype.Timestamptz{Time: now, Valid: true}
	c := s.plain.get(Flow{Tenant: outbox.RootTenant})
	c.state = due
	p := s.Plan(now, roomFor(100), nil)
	s.Claimed(false, p.Plain, got(p.Plain, 0), Extent{Front: true}, now)
	if flows, _ := s.Asked(); len(flows) != 1 {
		t.Fatalf("the next survey asks about %v, want the root tenant", flows)
	}
	s.SurveyFailed(false, time.Second)
	if flows, _ := s.Asked(); len(flows) != 0 {
		t.Errorf("the survey after it asks about %v again", flows)
	}
}

// A claim gets none of the jobs of a flow that were due, and cannot tell whether they were locked. The next survey
// asks. While it finds one left, the flow is looked at after 5 ms, 10 ms and so on, whatever else becomes due or is
// claimed meanwhile; when it finds none, another process had them, and the cursor passes what is not for this process.
func TestWhatMayBeLockedIsAskedFor(t *testing.T) {
	for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
		s, now := New(64), time.Now()
		s.since = pgtype.Timestamptz{Time: now, Valid: true}
		flow := Flow{Tenant: tenant}
		s.plain.get(Flow{Tenant: outbox.RootTenant}).state = drained
		c := s.plain.add(flow, now, outbox.ID{})
		left := SurveyRow{Flow: flow, Unknown: true}
		claim := func(each int) {
			t.Helper()
			p := s.Plan(now, roomFor(100), nil)
			if len(p.Plain) != 1 {
				t.Fatalf("the plan has %d shares, want one", len(p.Plain))
			}
			s.Claimed(false, p.Plain, got(p.Plain, each), Extent{Front: true}, now)
			if flows, from := s.Asked(); len(flows) != 1 || flows[0].Tenant != tenant || !from[0].IsZero() || !s.SurveyDue(now) {
				t.Fatalf("the next survey asks about %v, from %v; want %v, from the first entry", flows, from, tenant)
			}
		}
		survey := func(rows ...SurveyRow) {
			s.NoteSurvey(rows, pgtype.Timestamptz{Time: now, Valid: true}, true, now, now)
			if flows, _ := s.Asked(); len(flows) > 0 {
				t.Fatal("the flow is asked about for ever")
			}
		}
		woken := func() { // for another job of the flow
			s.Woken()
			for _, other := range s.plain.sorted {
				if other != c {
					other.state = drained
				}
			}
		}
		c.state = due
		for _, wait := range []time.Duration{soon, 2 * soon, 4 * soon} {
			claim(0)
			survey(left)
			if got := s.Sleep(now, time.Minute); got != wait || !c.At.RunAt.IsZero() {
				t.Fatalf("sleeps for %v, the cursor at %v; want %v, at the first entry", got, c.At.RunAt, wait)
			}
			now = now.Add(wait)
			s.SleepEnded(now)
		}
		claim(1) // another job, which has come meanwhile
		survey(left, SurveyRow{Flow: flow, Due: time.Millisecond})
		if got := s.Sleep(now, time.Minute); got != time.Millisecond {
			t.Fatalf("sleeps for %v, want until the next job is due", got)
		}
		woken()
		claim(0)
		survey(left)
		if got := s.Sleep(now, time.Minute); got != 16*soon {
			t.Fatalf("sleeps for %v after a wake-up for another job, want %v", got, 16*soon)
		}
		woken()
		claim(0)
		survey()
		if got := s.Sleep(now, time.Minute); got != time.Minute || c.At.RunAt.IsZero() || c.state != drained {
			t.Fatalf("sleeps for %v, the cursor at %v, %v; want a minute, and the cursor beyond what is not for us", got, c.At.RunAt, c.state)
		}
	}
}

// If no claim that begins at the first entry ends in time, as behind millions of dead entries that a snapshot keeps,
// the next ones begin shortly before the last survey, and searches look at what is before that, until a round of them
// is quick. Claims look at each place where one has found a job, and a backlog's go on from the last.
func TestWhatClaimsDoNotReachIsSearched(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
			s, now := New(64), time.Now()
			s.since = pgtype.Timestamptz{Time: now, Valid: true}
			flow := Flow{Tenant: tenant}
			c := s.cursors(keyed).add(flow, now, outbox.ID{}) // a new process knows no position
			share := Share{s.Tenant(tenant), []*Cursor{c}, 1}
			begins := func() time.Duration {
				at := c.From(s.AtFront(keyed, now), s.Front(keyed))
				if at.RunAt.IsZero() {
					return 0
				}
				return now.Sub(at.RunAt)
			}
			fail := func(front bool, why Failure) {
				s.Failed(keyed, []Share{share}, front, 5*time.Second)
				s.ChargeFailure(why)
			}
			// all returns what a search has found: of our flow these jobs, and of the others none.
			all := func(ranges []Range, jobs ...Position) (found [][]Position) {
				for _, r := range ranges {
					if found = append(found, nil); r.Keyed == keyed && r.Flow == flow {
						found[len(found)-1] = jobs
					}
				}
				return found
			}
			for _, why := range []Failure{Unrelated, Refused} {
				if fail(true, why); begins() != 0 || len(s.Search(now)) != 0 {
					t.Fatalf("a failure that says nothing of the cost lets claims begin %v back, want at the first entry", begins())
				}
			}
			if fail(true, TooMuch); begins() != lateCommit {
				t.Fatalf("after a claim that did not end, the next begins %v back, want %v", begins(), lateCommit)
			}
			ranges := s.Search(now)
			if !slices.Contains(endsOf(ranges), s.Front(keyed)) {
				t.Fatalf("searched ranges end at %v, want where claims begin", endsOf(ranges))
			}
			if len(s.Search(now)) != 0 {
				t.Fatal("a second search begins before the first has ended")
			}
			var jobs []Position
			for i := range MaxFound {
				jobs = append(jobs, Position{now.Add(-time.Hour), outbox.ID{1: byte(i)}})
			}
			last := jobs[MaxFound-1]
			s.NoteSearch(ranges, all(ranges, jobs...), SearchEnded, now, 3*time.Second, 3*time.Second)
			if c.At != last || c.state != due {
				t.Errorf("claims of the backlog go on at %v, want at the last job that was found", c.At.ID)
			}
			if from := c.From(s.AtFront(keyed, now), s.Front(keyed)); from != last || !keyed && !slices.Equal(c.Found(from), jobs[:MaxFound-1]) {
				t.Errorf("a claim begins at %v, want at the last, and looks at %d places before it", from.ID, len(c.Found(from)))
			}
			if !keyed {
				s.Claimed(false, []Share{share}, []Leased{{Flow: flow, At: jobs[9]}}, Extent{}, now)
				if n := len(c.Found(last)); n != MaxFound-1-10 || c.At != last || c.state != due {
					t.Errorf("after a claim of the tenth, %d places are left, want those after it", n)
				}
				s.Claimed(false, []Share{share}, nil, Extent{}, now)
				if len(c.found) != 0 || c.asks == nil {
					t.Error("after a claim that got none of them, there are places left, or nobody asks what is after them")
				}
			}
			if len(s.Search(now.Add(100*time.Second))) != 0 {
				t.Error("a search of three seconds is repeated within 40 times as long")
			}
			s.cursors(keyed).add(Flow{Tenant: numbered(9)}, now, outbox.ID{})
			ranges = s.Search(now.Add(100 * time.Second))
			if len(ranges) != 1 || ranges[0].End != s.Front(keyed) {
				t.Errorf("searched ranges end at %v, want only that of a new flow", endsOf(ranges))
			}
			s.NoteSearch(ranges, [][]Position{nil}, SearchEnded, now.Add(100*time.Second), 30*time.Second, 30*time.Second)
			if at := s.nextSearch(s.cursors(keyed)); at != now.Add(130*time.Second) || len(s.Search(at.Add(-1))) != 0 {
				t.Errorf("the next search is due %v from now, want after a rest of 30 s", at.Sub(now))
			}
			ranges = s.Search(now.Add(131 * time.Second))
			if !slices.Contains(endsOf(ranges), c.At) {
				t.Errorf("searched ranges end at %v, want at the cursor", endsOf(ranges))
			}
			back := Position{RunAt: now.Add(-2 * time.Hour)} // one job has come back
			s.NoteSearch(ranges, all(ranges, back), SearchEnded, now, time.Minute, time.Minute)
			if c.At != last || c.state != due || !keyed && !slices.Equal(c.Found(c.At), []Position{back}) {
				t.Errorf("a claim begins at %v, and looks at %v; want where it was, and at the job that was found", c.At.ID, c.found)
			}
			if fail(false, TooMuch); begins() != lateCommit || c.searched {
				t.Errorf("after a claim from the cursor that did not end, the next begins %v back, and nobody searches", begins())
			}
			if s.StartFromFront(); begins() != lateCommit {
				t.Errorf("claims that should begin at the front begin %v back, want where they end in time", begins())
			}
			ranges = s.Search(now.Add(maxSearchRest))
			if len(ranges) == 0 {
				t.Errorf("no search within %s", maxSearchRest)
			}
			if s.NoteSearch(ranges, make([][]Position, 1), SearchCutOff, now, time.Millisecond, time.Millisecond); begins() == 0 {
				t.Error("a search that failed shows that the dead entries are gone")
			}
			for s.round.on { // what comes after the range that failed
				ranges = s.Search(now.Add(maxSearchRest))
				s.NoteSearch(ranges, all(ranges, back), SearchEnded, now, time.Millisecond, time.Millisecond)
			}
			if begins() == 0 {
				t.Error("a round with a failure shows that the dead entries are gone")
			}
			ranges = s.Search(now.Add(maxSearchRest))
			if s.NoteSearch(ranges, all(ranges, jobs...), SearchEnded, now, time.Millisecond, time.Millisecond); begins() == 0 {
				t.Error("a round that has found as many jobs as it may shows that the dead entries are gone")
			}
			ranges = s.Search(now.Add(maxSearchRest))
			s.NoteSearch(ranges, all(ranges, back), SearchEnded, now, time.Millisecond, time.Millisecond)
			if begins() != 0 || len(c.Found(c.From(true, s.Front(keyed)))) != 0 {
				t.Errorf("after a quick round, claims begin %v back, want at the first entry", begins())
			}
		}
	}
}

func endsOf(ranges []Range) (ends []Position) {
	for _, r := range ranges {
		ends = append(ends, r.End)
	}
	return ends
}

// A round of searches goes on until it has looked at every flow, and a flow whose search fails keeps none waiting.
func TestARoundLooksAtEveryFlow(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		s, now := New(64), time.Now()
		s.since = pgtype.Timestamptz{Time: now, Valid: true}
		cs := s.cursors(keyed)
		for n := range 5 {
			cs.add(Flow{Tenant: numbered(n + 1)}, now, outbox.ID{})
		}
		cs.near = true
		looked := map[outbox.ID]int{}
		for range 20 {
			ranges := s.Search(now)
			if len(ranges) == 0 {
				break
			}
			n, failed := min(2, len(ranges)), looked[ranges[0].Tenant] == 0 && ranges[0].Tenant == numbered(1)
			if failed {
				n = 1
			}
			for _, r := range ranges[:n] {
				looked[r.Tenant]++
			}
			end := SearchEnded
			if failed {
				end = SearchCutOff
			}
			if s.NoteSearch(ranges, nil, SearchFailed, now, 0, 0); s.searchRests.Sub(now) < time.Second {
				t.Error("a search that fails at once is repeated at once")
			}
			now = s.searchRests
			if again := s.Search(now); !slices.Equal(again, ranges) {
				t.Errorf("after a search that failed, the next looks at %v, want the same", again)
			}
			s.NoteSearch(ranges, make([][]Position, n), end, now, time.Second, time.Second)
			now = s.searchRests
		}
		for n := range 5 {
			if looked[numbered(n+1)] != 1 {
				t.Errorf("flow %d was searched %d times in a round, want once", n, looked[numbered(n+1)])
			}
		}
		if s.round.on || !s.searchDue.After(now) || s.nextSearch(cs) != s.searchDue {
			t.Errorf("the round is on: %t, the next is due %s later", s.round.on, s.searchDue.Sub(now))
		}
	}
}

// fiveTenants returns the cursors of five tenants with two priorities, all with due jobs from an hour ago on.
func fiveTenants(keyed bool, now time.Time) (s *Scheduler, cs *cursors, at Position) {
	s, at = New(64), Position{RunAt: now.Add(-time.Hour)}
	s.since = pgtype.Timestamptz{Time: now, Valid: true}
	cs = s.cursors(keyed)
	for n := range 5 {
		for _, priority := range []int16{5, 0} {
			c := cs.add(Flow{numbered(n), priority}, now, outbox.ID{})
			c.At, c.state = at, due
		}
	}
	cs.front.next = now.Add(time.Hour) // claims begin at the cursors
	return s, cs, at
}

// claims plans and carries out so many claims. tooMuch reports whether one does not end in time.
func (s *Scheduler) claims(n int, keyed bool, now time.Time, tooMuch func([]Share) bool) (failures int) {
	for range n {
		p := s.Plan(now, roomFor(100), nil)
		shares := p.Shares(keyed)
		if tooMuch(shares) {
			failures++
			s.Failed(keyed, shares, false, 5*time.Second)
			s.ChargeFailure(TooMuch)
			s.keyedPausedUntil = time.Time{}
			continue
		}
		s.Claimed(keyed, shares, nil, Extent{More: true}, now)
	}
	return failures
}

// A claim of many flows that does not end in time costs none of them its position, but the one that it does not end
// for by itself: dead entries follow the first few of its jobs. Those that have been tried before lose none either.
func TestTheFlowThatIsTooMuchIsFound(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		for _, tried := range []bool{false, true} {
			now := time.Now()
			s, cs, at := fiveTenants(keyed, now)
			culprit := Flow{numbered(3), 0}
			for _, c := range cs.sorted {
				if tried && c.Flow != culprit {
					c.trial = cleared
				}
			}
			failures := s.claims(40, keyed, now, func(shares []Share) bool {
				return slices.ContainsFunc(shares, func(s Share) bool {
					return s.Quota > 3 && slices.ContainsFunc(s.Cursors, func(c *Cursor) bool { return c.Flow == culprit && c.At == at })
				})
			})
			for _, c := range cs.sorted {
				if (c.At == at) == (c.Flow == culprit) || c.trial != noTrial {
					t.Errorf("tried %t: %v: at %v, trial %v", tried, c.Flow, c.At.RunAt, c.trial)
				}
			}
			if failures != 2 || cs.near {
				t.Errorf("%d claims have failed, want one of all and one of the culprit; begins near: %t", failures, cs.near)
			}
		}
	}
}

// Flows that are too much only together give up their positions after they have failed together twice.
func TestFlowsThatAreTooMuchTogetherAreFound(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		now := time.Now()
		s, cs, at := fiveTenants(keyed, now)
		failures := s.claims(60, keyed, now, func(shares []Share) bool {
			stale := 0
			for _, s := range shares {
				for _, c := range s.Cursors {
					if c.At == at {
						stale++
					}
				}
			}
			return stale > 5
		})
		if failures != 2 || slices.ContainsFunc(cs.sorted, func(c *Cursor) bool { return c.trial == suspected }) {
			t.Errorf("%d claims have failed, want two", failures)
		}
	}
}

// Suspects whose claims fail for ever do not keep the others from being claimed.
func TestSuspectsLeaveTheOthersTheirTurn(t *testing.T) {
	for _, keyed := range []bool{false, true} {
		now := time.Now()
		s, cs, _ := fiveTenants(keyed, now)
		for _, c := range cs.sorted[:4] {
			c.trial = suspected
		}
		others := 0
		for range 40 {
			p := s.Plan(now, roomFor(100), nil)
			shares := p.Shares(keyed)
			if shares[0].Cursors[0].trial == suspected {
				if len(shares) != 1 || len(shares[0].Cursors) != 1 {
					t.Fatal("a suspect is claimed with others")
				}
				s.Failed(keyed, shares, false, time.Second)
				s.ChargeFailure(Refused)
				s.keyedPausedUntil = time.Time{}
				continue
			}
			others++
			s.Claimed(keyed, shares, nil, Extent{More: true}, now)
			s.Claimed(!keyed, nil, nil, Extent{}, now) // the other set's turns do not count
		}
		if others < 19 {
			t.Errorf("%d of 40 claims were for the others, want every second", others)
		}
	}
}

// Jobs with a key whose claims fail leave most of the time to jobs without one.
func TestAClaimThatFailsLeavesTheOthersTheirTurn(t *testing.T) {
	s := schedulerOf(1, due)
	s.keyed.add(Flow{Tenant: numbered(0)}, time.Now(), outbox.ID{}).state = due
	s.Failed(true, nil, false, 5*time.Second)
	s.ChargeFailure(TooMuch)
	if p := s.Plan(time.Now().Add(9*time.Second), roomFor(10), nil); len(p.Keyed) != 0 || len(p.Plain) != 1 {
		t.Errorf("soon after: %d shares of jobs with a key, %d of the others; want 0 and 1", len(p.Keyed), len(p.Plain))
	}
	if p := s.Plan(time.Now().Add(11*time.Second), roomFor(10), nil); len(p.Keyed) != 1 {
		t.Error("later: none of jobs with a key, want one")
	}
	s.plain.sorted[0].state = drained
	if p := s.Plan(time.Now(), roomFor(10), nil); len(p.Keyed) != 1 {
		t.Error("while there are no others: none of jobs with a key, want one")
	}
}

// If offered jobs have used up a tenant's quota, its cursors' jobs have not been looked at.
func TestOfferedJobsCount(t *testing.T) {
	for _, tenant := range []outbox.ID{outbox.RootTenant, numbered(7)} {
		s, now := New(64), time.Now()
		c := s.keyed.add(Flow{Tenant: tenant}, now, outbox.ID{})
		other := s.keyed.add(Flow{Tenant: numbered(8)}, now, outbox.ID{})
		offered := candidate(tenant, 0, now, 1)
		offered.Offered = true
		shares := []Share{{s.Tenant(tenant), []*Cursor{c}, 1}, {s.Tenant(numbered(8)), []*Cursor{other}, 1}}
		s.Claimed(true, shares, []Leased{offered}, Extent{Front: true}, now)
		if c.state != due || other.state != drained {
			t.Errorf("the cursors are %v and %v, want due and drained", c.state, other.state)
		}
		if !c.At.RunAt.IsZero() {
			t.Errorf("the offered job has moved the cursor to %v", c.At)
		}
	}
}
