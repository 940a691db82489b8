package dispatcher

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

func bookOf(tenants int) *laneBook {
	b := newLaneBook()
	for n := range tenants {
		b.addDue(b.lane(laneName{tenant: outbox.ID{0: byte(n >> 8), 1: byte(n), 15: 9}}, time.Now()))
	}
	b.order()
	return &b
}

// However small the room of a claim, every tenant is served before one is served
// for the second time more, and the room is used up.
func TestTenantsTakeTurns(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tenants := rapid.IntRange(1, 300).Draw(t, "tenants")
		b := bookOf(tenants)
		served := map[outbox.ID]int{}
		for range rapid.IntRange(1, 30).Draw(t, "claims") {
			room := rapid.IntRange(1, 400).Draw(t, "room")
			left := room
			for _, share := range divide(b.tenants(), room) {
				if share.quota < room/tenants || share.quota > room/tenants+1 {
					t.Fatalf("a quota of %d of %d among %d", share.quota, room, tenants)
				}
				served[share.tenant]++
				left -= share.quota
				b.served = share.tenant
			}
			if left != 0 {
				t.Fatalf("%d of a room of %d were given to nobody", left, room)
			}
			least, most := 1<<30, 0
			for _, l := range b.due {
				least, most = min(least, served[l.tenant]), max(most, served[l.tenant])
			}
			if most > least+1 {
				t.Fatalf("one tenant was served %d times, another %d times", most, least)
			}
		}
	})
}

// The priorities of a tenant share its part, highest first.
func TestATenantsLanesBelongTogether(t *testing.T) {
	b := bookOf(3)
	for _, priority := range []int16{-5, 7} {
		b.addDue(b.lane(laneName{tenant: outbox.ID{1: 1, 15: 9}, priority: priority}, time.Now()))
	}
	b.order()
	b.served = outbox.ID{1: 2, 15: 9}
	all := b.tenants()
	if len(all) != 3 || all[0].tenant[1] != 1 || all[1].tenant[1] != 0 || all[2].tenant[1] != 2 {
		t.Fatalf("turns = %v, want the tenants 1, 0, 2", all)
	}
	var got []int16
	for _, l := range all[0].lanes {
		got = append(got, l.priority)
	}
	if len(got) != 3 || got[0] != 7 || got[1] != 0 || got[2] != -5 {
		t.Errorf("lanes of a tenant = %v, want 7, 0, -5", got)
	}
}

// While one side always has more, the other gets its part of even the smallest rooms.
func TestRootIsOneOfTheTenants(t *testing.T) {
	for name, backlog := range map[string]bool{"root has a backlog": true, "root has none": false} {
		for _, room := range []int{1, 2, 3, 7, 2000} {
			s := newSharedLook()
			s.filled.set(outbox.RootTenant, backlog)
			const tenants, claims = 3, 400
			others := 0
			for range claims {
				part := s.part(room, tenants)
				if part < 0 || part > room {
					t.Fatalf("%s: a part of %d of a room of %d", name, part, room)
				}
				others += part
			}
			root := room*claims - others
			if want := room * claims / (tenants + 1); backlog && (root < want-claims/100 || root > want+claims/100) {
				t.Errorf("%s: root's part of rooms of %d is %d, want %d", name, room, root, want)
			}
			if root == 0 || others == 0 {
				t.Errorf("%s: rooms of %d are divided %d to %d", name, room, root, others)
			}
		}
	}
}

// While a walk is too dear, and a search as well, claims go on in the lanes that were in use, and the
// next one is not put off for ever.
func TestWhileAWalkIsTooDear(t *testing.T) {
	q := &queue{Dispatcher: &Dispatcher{config: Config{}.withDefaults()}, shared: newSharedLook()}
	s := &q.shared
	s.found()
	b := &s.lanes
	now := time.Now()
	used := b.lane(laneName{tenant: outbox.ID{1}}, now)
	used.from = position{runAt: now}
	b.paid, b.searchPaid = now.Add(3*time.Second), now.Add(2*time.Second)
	if err := q.walk(t.Context()); err != nil { // sends nothing: there is no database
		t.Fatal(err)
	}
	if len(b.due) != 1 || b.due[0] != used {
		t.Fatalf("lanes to claim from = %v, want the one in use", b.due)
	}
	s.note([]share{{tenant: used.tenant, lanes: b.due, quota: 1}}, nil)
	sleep, more := q.surveyShared(now)
	if more || sleep <= 0 || sleep > 2*time.Second {
		t.Errorf("survey = %v, %t; want to look again when the search is paid for", sleep, more)
	}
	if now.Before(used.until) {
		t.Error("a lane of which nobody said that it is due is held to be for others")
	}
}

// A lap that takes several statements serves each tenant once before it begins anew.
func TestCrowdedLapsServeEachTenantOnce(t *testing.T) {
	s := newSharedLook()
	s.found()
	b := &s.lanes
	fresh := b.begin()
	rows := make([]sqlgen.WalkLanesRow, maxDueLanes+1)
	for n := range maxDueLanes {
		rows[n] = sqlgen.WalkLanesRow{TenantID: pgID(outbox.ID{1, byte(255 - n)}), DueInSeconds: -1, NextInSeconds: -1}
	}
	b.note(rows, time.Now(), fresh)
	if !b.lap.under || !b.crowded || len(b.tenants()) != maxDueLanes {
		t.Fatalf("under way = %t, crowded = %t, tenants = %d", b.lap.under, b.crowded, len(b.tenants()))
	}
	shares := divide(b.tenants(), maxDueLanes)
	claimed := make([]*attempt, 0, maxDueLanes)
	for _, share := range shares { // each has more
		a := candidate(0, time.Now(), 1)
		a.job.Tenant = share.tenant
		claimed = append(claimed, a)
	}
	s.note(shares, claimed)
	if len(b.due) != 0 || !b.open() {
		t.Errorf("lanes left for a second turn = %d, lap goes on = %t", len(b.due), b.open())
	}
	b.note(rows[maxDueLanes:], time.Now(), b.begin())
	if b.lap.under || !b.stale {
		t.Errorf("after the last of the lap: under way = %t, another one to follow = %t", b.lap.under, b.stale)
	}
}

// A claim that fills its room looks no further the next time: what it passed over could
// have run. One that finds little to run looks twice as far.
func TestAClaimOfKeysLooksAsFarAsItHasTo(t *testing.T) {
	k := newKeyedLook()
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

// A look at more tenants than it takes goes on behind the last of them; one that comes to
// the end begins again. What it cannot look at now it owes.
func TestTenantsWithKeysTakeTurnsToBeLookedAt(t *testing.T) {
	now := time.Now()
	var k keyedTurns
	rows := make([]sqlgen.FindKeyedTurnsRow, maxTurnTenants)
	for n := range rows {
		rows[n] = sqlgen.FindKeyedTurnsRow{TenantID: pgID(outbox.ID{1, byte(n)}), N: int32(n + 1), ID: pgID(outbox.ID{2, byte(n)})}
	}
	rows[3].ID.Valid = false // all of its jobs are due later
	k.note(rows, now)
	if want := (outbox.ID{1, maxTurnTenants - 1}); k.above != want || !k.on(now) || len(k.found.jobs(true)) != maxTurnTenants-1 {
		t.Errorf("the next look begins above %s, want %s; found %d", k.above, want, len(k.found.jobs(true)))
	}
	if k.note(rows[:2], now); !k.above.IsZero() {
		t.Errorf("after the last tenant it begins above %s", k.above)
	}
	if k.note(nil, now); k.take() != nil || !k.on(now) || k.on(now.Add(keyedLinger)) {
		t.Error("one tenant alone is shared with others")
	}
}
