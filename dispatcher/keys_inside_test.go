package dispatcher

import (
	"testing"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

// A claim of jobs with a key that fills its room looks no further the next time: the jobs that it passed over could
// have run. One that finds little to run looks twice as far.
func TestAClaimOfKeysLooksAsFarAsItHasTo(t *testing.T) {
	k := newKeyedClaims()
	for _, step := range []struct {
		claimed, room, looked int
		blocked, passed       int32
		want                  int
		more                  bool
	}{
		{0, 100, 200, 200, 0, 400, true},
		{10, 100, 400, 390, 0, 800, true},
		{100, 100, 800, 0, 0, minLookahead, true},
		{90, 100, 112, 22, 0, minLookahead, true},
		{10, 100, 200, 190, 0, 400, true},
		{0, 100, maxBatch, maxBatch, 0, maxBatch, true},
		{0, 100, maxBatch, 0, maxBatch, 2 * maxBatch, true},  // what lies behind the locked ones is looked at, too,
		{0, 100, 2 * maxBatch, 0, maxBatch, maxBatch, false}, // and no more where there is anything else
		{0, 100, 6 * maxBatch, 0, 6 * maxBatch, maxLookahead, true},
		{0, 100, maxLookahead, 0, maxLookahead, maxLookahead, false},
		{100, 100, maxLookahead, 0, 200, minLookahead, true},
	} {
		more := k.note(tally{looked: int32(step.looked), blocked: step.blocked, passed: step.passed}, step.claimed, step.room, []int32{int32(step.looked)})
		if k.lookahead != step.want || k.allTaken != (step.blocked+step.passed == 0) || more != step.more {
			t.Errorf("after %+v: reach = %d, fits = %v, more = %v", step, k.lookahead, k.allTaken, more)
		}
	}
	// All jobs of one tenant that the claim looked at may be blocked, although it could have looked at more of
	// another's.
	for blocked, want := range map[int32]bool{8: true, 0: false} {
		if more := k.note(tally{looked: 8, blocked: blocked}, 0, 64, []int32{56, 8}); more != want {
			t.Errorf("of two tenants, %d blocked: more = %v, want %v", blocked, more, want)
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

// An offered job that no claim takes, because another process has it, is dropped in the end, even if every claim fills
// its quota.
func TestStaleOffersAreForgotten(t *testing.T) {
	k, shares := newKeyedClaims(), []scheduler.Share{{Tenant: &scheduler.Tenant{ID: numbered(7)}, Quota: 1}}
	for n := range 3 {
		k.offer(numbered(7), pgvalue.UUID(outbox.ID{15: byte(n)}))
	}
	another := []*attempt{{job: newJob("tiny", numbered(7), 0, "k")}}
	for look := range maxLooks {
		if k.offered() != 3 {
			t.Fatalf("after %d claims %d jobs are offered, want 3", look, k.offered())
		}
		k.putBack(leftOver(shares, map[outbox.ID][]offer{numbered(7): k.takeOffers(numbered(7), 9)}, another))
	}
	if k.offered() != 0 {
		t.Errorf("after %d claims %d jobs are still offered", maxLooks, k.offered())
	}
}
