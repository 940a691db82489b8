package dispatcher

import (
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/outbox"
)

// keyedClaims is what a queue's claim loop knows of its jobs with a key, besides their
// cursors. Which of them may run is decided under the row of their key, by the claiming
// statement (outbox.claim_keyed), which blocks the others.
type keyedClaims struct {
	reach int  // candidates that the next claim looks at, at least
	fits  bool // all that the last claim looked at could run

	mu     sync.Mutex
	offers map[outbox.ID][]offer // jobs promoted by this process, by tenant: they need not be searched for
	count  int                   // of them
}

const (
	minReach = 64
	// maxReach is for claims that pass by all they look at, because somebody else has the jobs locked, or the row
	// of their key, for as long as a transaction lasts: those behind them are free. Others look at maxBatch at most.
	maxReach = 8 * maxBatch
	// maxLooks is after how many claims that have not taken it an offered job is forgotten. One that is still due was
	// behind others each time, and a claim from the front finds it; another process has taken most.
	maxLooks = 8
)

func newKeyedClaims() *keyedClaims {
	return &keyedClaims{reach: minReach, offers: map[outbox.ID][]offer{}}
}

// offer names jobs that are due now. Any goroutine may call it.
func (k *keyedClaims) offer(tenant outbox.ID, id pgtype.UUID) {
	k.putBack(map[outbox.ID][]offer{tenant: {{id: id}}})
}

// offeredOf returns the tenants of offered jobs that no claim has looked at yet.
func (k *keyedClaims) offeredOf() []outbox.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count == 0 {
		return nil
	}
	return slices.Collect(maps.Keys(k.offers))
}

// offered is how many jobs were offered that no claim has looked at yet.
func (k *keyedClaims) offered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count
}

func (k *keyedClaims) takeOffers(tenant outbox.ID, most int) []offer {
	k.mu.Lock()
	defer k.mu.Unlock()
	of := k.offers[tenant]
	n := min(len(of), max(most, 0))
	taken := slices.Clone(of[:n])
	if k.count -= n; n == len(of) {
		delete(k.offers, tenant)
	} else {
		k.offers[tenant] = of[n:]
	}
	return taken
}

// putBack offers again what takeOffers gave.
func (k *keyedClaims) putBack(taken map[outbox.ID][]offer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for tenant, of := range taken {
		if of = of[:min(len(of), 2*maxBatch-k.count)]; len(of) > 0 { // beyond, claims from the front find them
			k.offers[tenant] = append(k.offers[tenant], of...)
			k.count += len(of)
		}
	}
}

// aim says how many jobs of each share the claim looks at, and which offered ones besides; a probe looks at none, which
// may be of other kinds. It returns the largest of these numbers, and the offers.
func (k *keyedClaims) aim(r *claimRequest, probe bool) (furthest int, taken map[outbox.ID][]offer) {
	taken = map[outbox.ID][]offer{}
	for _, share := range r.shares {
		reach := 2 * share.Quota
		if k.fits { // what is looked at and not taken is work for nothing
			reach = share.Quota + share.Quota/8
		}
		reach = min(max(reach, k.reach*share.Quota/r.room, scheduler.Sparse), max(k.reach, maxBatch))
		if !probe {
			of := k.takeOffers(share.Tenant.ID, reach)
			taken[share.Tenant.ID] = of
			for _, o := range of {
				r.offered = append(r.offered, o.id)
			}
		}
		r.reaches = append(r.reaches, int32(reach))
		furthest = max(furthest, reach)
	}
	return furthest, taken
}

// note learns from a claim how far the next one has to look: many jobs of a few keys at the
// front are blocked in bulk. It reports whether there may be due jobs that this one did not
// look at.
func (k *keyedClaims) note(done tally, claimed, room, reach int) (more bool) {
	looked, passedAll := int(done.looked), done.passed == done.looked
	k.fits = done.blocked == 0 && done.passed == 0
	switch {
	case claimed >= room || claimed > looked/2:
		k.reach = minReach
	case looked >= reach && passedAll:
		if k.reach < maxReach {
			k.reach = min(2*max(k.reach, reach), maxReach)
			return true
		}
	case looked >= reach && claimed < looked/4:
		k.reach = min(2*reach, maxBatch)
	case !passedAll:
		k.reach = min(k.reach, maxBatch)
	}
	return done.promoted > 0 || claimed >= room || (looked >= reach && int(done.blocked)+claimed > 0)
}
