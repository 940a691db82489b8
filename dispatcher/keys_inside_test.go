package dispatcher

import (
	"testing"

	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/outbox"
)

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
