package dispatcher

import (
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/outbox"
)

// keyedClaims holds what a queue's claim loop knows about its jobs with a key, besides their cursors. The claiming
// statement (outbox.claim_keyed) decides under the lock on the key's row which of them may run, and blocks the others.
type keyedClaims struct {
	lookahead int  // candidates that the next claim looks at, at least
	allTaken  bool // all candidates of the last claim could run

	mu     sync.Mutex
	offers map[outbox.ID][]offer // jobs promoted by this process, by tenant: no claim has to search for them
	count  int                   // of all offers
}

const (
	minLookahead = 64
	// maxLookahead applies to claims that pass by all their candidates, because another transaction has locked the jobs
	// or the row of their key for as long as it lasts: the jobs behind them are free. Other claims look at maxBatch at
	// most.
	maxLookahead = 8 * maxBatch
	// maxLooks is the number of claims without success after which an offered job is forgotten. If it is still due, it
	// was behind others each time, and a claim from the front finds it, or a search if such claims do not end in time;
	// most such jobs have been taken by another process.
	maxLooks = 8
)

func newKeyedClaims() *keyedClaims {
	return &keyedClaims{lookahead: minLookahead, offers: map[outbox.ID][]offer{}}
}

// offer adds a job that is due now. Any goroutine may call it.
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

// offered returns how many jobs were offered that no claim has looked at yet.
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

// putBack offers again the jobs that takeOffers returned.
func (k *keyedClaims) putBack(taken map[outbox.ID][]offer) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for tenant, of := range taken {
		if of = of[:min(len(of), 2*maxBatch-k.count)]; len(of) > 0 { // the rest is found like late commits
			k.offers[tenant] = append(k.offers[tenant], of...)
			k.count += len(of)
		}
	}
}

// aim sets how many jobs of each share the claim looks at, and which offered jobs besides. A probe looks at no offered
// jobs, because they may be of other kinds. aim returns the offers that it took.
func (k *keyedClaims) aim(r *claimRequest, probe bool) (taken map[outbox.ID][]offer) {
	taken = map[outbox.ID][]offer{}
	for _, share := range r.shares {
		lookahead := 2 * share.Quota
		if k.allTaken { // looking at jobs that are not taken is wasted work
			lookahead = share.Quota + share.Quota/8
		}
		lookahead = min(max(lookahead, k.lookahead*share.Quota/r.room, scheduler.Sparse), max(k.lookahead, maxBatch))
		if !probe {
			of := k.takeOffers(share.Tenant.ID, lookahead)
			taken[share.Tenant.ID] = of
			for _, o := range of {
				r.offered = append(r.offered, o.id)
			}
		}
		r.lookaheads = append(r.lookaheads, int32(lookahead))
	}
	return taken
}

// note adjusts the lookahead of the next claim: when many jobs of a few keys are at the front, one claim blocks them in
// bulk. It reports whether there may be due jobs that this claim did not look at. Nobody counts by tenant, so if jobs
// were blocked, those may be all that the claim looked at for the tenant with the shortest lookahead.
func (k *keyedClaims) note(done tally, claimed, room int, lookaheads []int32) (more bool) {
	looked, passedAll := int(done.looked), done.passed == done.looked
	nearest, lookahead := int(slices.Min(lookaheads)), int(slices.Max(lookaheads))
	k.allTaken = done.blocked == 0 && done.passed == 0
	switch {
	case claimed >= room || claimed > looked/2:
		k.lookahead = minLookahead
	case looked >= lookahead && passedAll:
		if k.lookahead < maxLookahead {
			k.lookahead = min(2*max(k.lookahead, lookahead), maxLookahead)
			return true
		}
	case looked >= lookahead && claimed < looked/4:
		k.lookahead = min(2*lookahead, maxBatch)
	case !passedAll:
		k.lookahead = min(k.lookahead, maxBatch)
	}
	return done.promoted > 0 || claimed >= room || looked >= lookahead && claimed > 0 ||
		looked >= nearest && done.blocked > 0
}
