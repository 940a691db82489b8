package scheduler

import (
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

const maxBatch = 2000

// A claim of jobs with a key that fills its room looks no further the next time: the jobs that it passed over could
// have run. One that finds little to run looks twice as far.
func TestAClaimOfKeysLooksAsFarAsItHasTo(t *testing.T) {
	k := NewKeyed(maxBatch)
	for _, step := range []struct {
		claimed, room, looked int
		blocked, passed       int32
		want                  int
		more                  bool
	}{
		{0, 100, 200, 200, 0, 400, true},
		{10, 100, 400, 390, 0, 800, true},
		{100, 100, 800, 0, 0, MinLookahead, true},
		{90, 100, 112, 22, 0, MinLookahead, true},
		{10, 100, 200, 190, 0, 400, true},
		{0, 100, maxBatch, maxBatch, 0, maxBatch, true},
		{0, 100, maxBatch, 0, maxBatch, 2 * maxBatch, true},  // what lies behind the locked ones is looked at, too,
		{0, 100, 2 * maxBatch, 0, maxBatch, maxBatch, false}, // and no more where there is anything else
		{0, 100, 6 * maxBatch, 0, 6 * maxBatch, 8 * maxBatch, true},
		{0, 100, 8 * maxBatch, 0, 8 * maxBatch, 8 * maxBatch, false},
		{100, 100, 8 * maxBatch, 0, 200, MinLookahead, true},
	} {
		more := k.Note(Tally{Looked: int32(step.looked), Blocked: step.blocked, Passed: step.passed}, step.claimed, step.room, []int32{int32(step.looked)})
		if k.lookahead != step.want || k.allTaken != (step.blocked+step.passed == 0) || more != step.more {
			t.Errorf("after %+v: reach = %d, fits = %v, more = %v", step, k.lookahead, k.allTaken, more)
		}
	}
	// All jobs of one tenant that the claim looked at may be blocked, although it could have looked at more of
	// another's.
	for blocked, want := range map[int32]bool{8: true, 0: false} {
		if more := k.Note(Tally{Looked: 8, Blocked: blocked}, 0, 64, []int32{56, 8}); more != want {
			t.Errorf("of two tenants, %d blocked: more = %v, want %v", blocked, more, want)
		}
	}
}

// Promoted jobs are offered to the next claim of their tenant, once.
func TestOffers(t *testing.T) {
	k := NewKeyed(maxBatch)
	for n := range 5 {
		k.Offer(numbered(n%2), pgvalue.UUID(outbox.ID{15: byte(n)}))
	}
	if n := len(k.OfferedOf()); n != 2 || k.Offered() != 5 {
		t.Errorf("%d offers of %d tenants, want 5 of 2", k.Offered(), n)
	}
	if n := len(k.takeOffers(numbered(0), 2)); n != 2 || k.Offered() != 3 {
		t.Errorf("took %d, left %d; want 2 and 3", n, k.Offered())
	}
	if n := len(k.takeOffers(numbered(0), 9)); n != 1 || len(k.OfferedOf()) != 1 {
		t.Errorf("took %d, want the last one", n)
	}
}

// An offered job that no claim takes, because another process has it, is dropped in the end, even if every claim fills
// its quota.
func TestStaleOffersAreForgotten(t *testing.T) {
	k, shares := NewKeyed(maxBatch), []Share{{Tenant: &Tenant{ID: numbered(7)}, Quota: 1}}
	for n := range 3 {
		k.Offer(numbered(7), pgvalue.UUID(outbox.ID{15: byte(n)}))
	}
	another := []Leased{{Flow: Flow{Tenant: numbered(7)}, At: Position{ID: outbox.NewID()}}}
	for look := range maxLooks {
		if k.Offered() != 3 {
			t.Fatalf("after %d claims %d jobs are offered, want 3", look, k.Offered())
		}
		k.Claimed(shares, Offers{numbered(7): k.takeOffers(numbered(7), 9)}, another)
	}
	if k.Offered() != 0 {
		t.Errorf("after %d claims %d jobs are still offered", maxLooks, k.Offered())
	}
}

// A claim looks at the offered jobs of its tenants once, in part if they are many; a probe looks at none. A claim that
// has failed puts them back. It keeps no job that it got, and none of a tenant that it looked through.
func TestClaimsTakeOffers(t *testing.T) {
	const room = 100
	one, other := numbered(1), numbered(2)
	shares := []Share{{Tenant: &Tenant{ID: one}, Quota: 10}, {Tenant: &Tenant{ID: other}, Quota: 90}}
	k := NewKeyed(maxBatch)
	for n := range 30 {
		k.Offer(one, pgvalue.UUID(outbox.ID{14: 1, 15: byte(n)}))
	}
	k.Offer(other, pgvalue.UUID(outbox.ID{14: 2}))
	if _, offered, _ := k.Aim(shares, room, true); len(offered) != 0 || k.Offered() != 31 {
		t.Errorf("a probe looks at %d offered jobs", len(offered))
	}
	lookaheads, offered, taken := k.Aim(shares, room, false)
	if lookaheads[0] != 20 || lookaheads[1] != 180 || len(offered) != 21 || k.Offered() != 10 {
		t.Errorf("a claim looks at %v jobs, %d of them offered, and %d are left; want 20 and 180, 21, and 10", lookaheads, len(offered), k.Offered())
	}
	if k.Failed(taken); k.Offered() != 31 {
		t.Errorf("after a claim that failed %d jobs are offered, want 31", k.Offered())
	}
	var jobs []Leased
	_, offered, taken = k.Aim(shares, room, false)
	for _, id := range offered[:10] {
		jobs = append(jobs, Leased{Flow: Flow{Tenant: one}, At: Position{ID: id.Bytes}, Offered: true})
	}
	if k.Claimed(shares, taken, jobs); k.Offered() != 20 || len(k.OfferedOf()) != 1 {
		t.Errorf("after a claim of 10 jobs %d of %d tenants are offered, want 20 of one", k.Offered(), len(k.OfferedOf()))
	}
}
