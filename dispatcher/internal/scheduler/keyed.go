package scheduler

import (
	"maps"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/outbox"
)

// Keyed holds what a queue's claim loop knows about its jobs with a key, besides their cursors. The claiming statement
// (outbox.claim_keyed) decides under the lock on the key's row which of them may run, and blocks the others. Any
// goroutine may offer jobs; the rest is for the claim loop, which calls Aim before each claim, and afterwards Failed,
// or Note and then Claimed. If it does not know whether the claim was committed, it calls PutBack instead of Claimed.
type Keyed struct {
	most      int  // jobs of a claim
	lookahead int  // candidates that the next claim looks at, at least
	allTaken  bool // all candidates of the last claim could run

	mu     sync.Mutex
	offers Offers // jobs promoted by this process: no claim has to search for them
	count  int    // of all offers
}

// Offers are promoted jobs by tenant, which a claim finds by their ids.
type Offers map[outbox.ID][]offer

type offer struct {
	id    pgtype.UUID
	looks int // how many claims have not taken it
}

const (
	// MinLookahead is how many candidates a claim looks at, at least, over all of its shares.
	MinLookahead = 64
	// maxLooks is the number of claims without success after which an offered job is forgotten. If it is still due, it
	// was behind others each time, and a claim from the front finds it, or a search if such claims do not end in time;
	// most such jobs have been taken by another process.
	maxLooks = 8
)

// NewKeyed returns a Keyed for claims of so many jobs, at most.
func NewKeyed(most int) *Keyed { return &Keyed{most: most, lookahead: MinLookahead, offers: Offers{}} }

// Offer adds a job that is due now.
func (k *Keyed) Offer(tenant outbox.ID, id pgtype.UUID) { k.PutBack(Offers{tenant: {{id: id}}}) }

// OfferedOf returns the tenants of offered jobs that no claim has looked at yet.
func (k *Keyed) OfferedOf() []outbox.ID {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.count == 0 {
		return nil
	}
	return slices.Collect(maps.Keys(k.offers))
}

// Offered returns how many jobs were offered that no claim has looked at yet.
func (k *Keyed) Offered() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.count
}

func (k *Keyed) takeOffers(tenant outbox.ID, most int) []offer {
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

// PutBack offers again the jobs that Aim took.
func (k *Keyed) PutBack(taken Offers) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for tenant, of := range taken {
		if of = of[:min(len(of), 2*k.most-k.count)]; len(of) > 0 { // the rest is found like late commits
			k.offers[tenant] = append(k.offers[tenant], of...)
			k.count += len(of)
		}
	}
}

// Aim returns how many jobs of each share a claim looks at, and which offered jobs besides: those that it took from the
// offers. A probe looks at none of these, because they may be of other kinds.
func (k *Keyed) Aim(shares []Share, room int, probe bool) (lookaheads []int32, offered []pgtype.UUID, taken Offers) {
	taken = Offers{}
	for _, share := range shares {
		lookahead := 2 * share.Quota
		if k.allTaken { // looking at jobs that are not taken is wasted work
			lookahead = share.Quota + share.Quota/8
		}
		lookahead = min(max(lookahead, k.lookahead*share.Quota/room, Sparse), max(k.lookahead, k.most))
		if !probe {
			of := k.takeOffers(share.Tenant.ID, lookahead)
			taken[share.Tenant.ID] = of
			for _, o := range of {
				offered = append(offered, o.id)
			}
		}
		lookaheads = append(lookaheads, int32(lookahead))
	}
	return lookaheads, offered, taken
}

// Failed puts back the offers of a claim that has failed; the claim may have looked at too many jobs.
func (k *Keyed) Failed(taken Offers) {
	k.PutBack(taken)
	k.lookahead = min(k.lookahead, k.most)
}

// Tally counts the candidates that a claim has looked at.
type Tally struct{ Looked, Passed, Blocked, Promoted int32 }

// Note adjusts the lookahead of the next claim: when many jobs of a few keys are at the front, one claim blocks them in
// bulk. Claims that pass by all their candidates, because another transaction has locked the jobs or the row of their
// key for as long as it lasts, look furthest: the jobs behind them are free. It reports whether there may be due jobs
// that this claim did not look at. Nobody counts by tenant, so if jobs were blocked, those may be all that the claim
// looked at for the tenant with the shortest lookahead.
func (k *Keyed) Note(done Tally, claimed, room int, lookaheads []int32) (more bool) {
	looked, passedAll := int(done.Looked), done.Passed == done.Looked
	nearest, lookahead := int(slices.Min(lookaheads)), int(slices.Max(lookaheads))
	k.allTaken = done.Blocked == 0 && done.Passed == 0
	switch {
	case claimed >= room || claimed > looked/2:
		k.lookahead = MinLookahead
	case looked >= lookahead && passedAll:
		if furthest := 8 * k.most; k.lookahead < furthest {
			k.lookahead = min(2*max(k.lookahead, lookahead), furthest)
			return true
		}
	case looked >= lookahead && claimed < looked/4:
		k.lookahead = min(2*lookahead, k.most)
	case !passedAll:
		k.lookahead = min(k.lookahead, k.most)
	}
	return done.Promoted > 0 || claimed >= room || looked >= lookahead && claimed > 0 ||
		looked >= nearest && done.Blocked > 0
}

// Claimed offers jobs again that a claim has left, of tenants that used up their quotas. It may have looked at none of
// them, and no survey shows them.
func (k *Keyed) Claimed(shares []Share, taken Offers, jobs []Leased) {
	got, of := make(map[outbox.ID]bool, len(jobs)), map[outbox.ID]int{}
	for _, job := range jobs {
		got[job.At.ID] = true
		of[job.Tenant]++
	}
	left := Offers{}
	for _, s := range shares {
		for _, o := range taken[s.Tenant.ID] {
			if o.looks++; of[s.Tenant.ID] >= s.Quota && !got[o.id.Bytes] && o.looks < maxLooks {
				left[s.Tenant.ID] = append(left[s.Tenant.ID], o)
			}
		}
	}
	k.PutBack(left)
}
