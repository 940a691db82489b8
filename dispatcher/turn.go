package dispatcher

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// keyedTurns has the tenants whose jobs with a key wait in a queue share what it
// claims of such jobs. A claim looks at the oldest ones first, which may be a million
// of one tenant. So while it cannot look at all of them, the first jobs of each tenant
// are looked for besides, and the claiming statement takes one of each in turns.
//
//	claim    what is found is offered to it, beside what it sees at the front
//	turns    when there are more tenants than one look finds, the next one begins
//	         behind the last
//	workers  the jobs of a tenant that has no more than a few go ahead of the
//	         buffer, and are claimed also when it is full, as in sharedLook
//
// While only one tenant has had such jobs for a while, the look is two probes of an index,
// some ten times a second; a queue that is not behind makes none. Only the claim loop uses it.
type keyedTurns struct {
	behind bool          // the last claim may have left due jobs that it did not look at
	above  outbox.ID     // where the next look begins
	paid   time.Time     // until then a look is too dear
	took   time.Duration // by the last look
	failed bool          // the last look did
	owed   bool          // one was asked for meanwhile
	seen   time.Time     // when more than one tenant was found last
	found  *turns        // for the next claim
	cost   time.Duration // of a claim, for each job; moving average
	claim  time.Duration // what a claim takes; moving average
}

// turns are the first due jobs of several tenants. nil has none.
type turns struct {
	of    map[outbox.ID][]pgtype.UUID // of who has no more than sparse these are all
	among map[outbox.ID]bool          // the jobs
}

const (
	maxTurnTenants = 64
	aloneRest      = surveyInterval // between two looks that find one tenant
	// turnTime is how long a claim may take while tenants share: whose job comes
	// meanwhile waits for the end of it.
	turnTime  = 5 * time.Millisecond
	leastTurn = 16
)

// on reports whether jobs with a key are shared among several tenants, now or lately.
func (k *keyedTurns) on(now time.Time) bool { return now.Sub(k.seen) < keyedLinger }

// lookForTurns looks for the first jobs of each tenant that a claim for room would not
// see, unless that is too dear now.
func (q *queue) lookForTurns(ctx context.Context, room int) error {
	k := &q.keyed.turns
	started := time.Now()
	if k.owed = started.Before(k.paid); k.owed {
		return nil
	}
	priorities, _, _ := q.keyed.scan.from(full)
	bound, cancel := bounded(ctx)
	defer cancel()
	rows, err := q.db.FindKeyedTurns(bound, sqlgen.FindKeyedTurnsParams{
		Queue: q.name, Above: pgID(k.above), MaxTenants: maxTurnTenants, Room: int32(room), Least: sparse + 1,
		Priorities: priorities, Kinds: q.claimable(),
	})
	now := time.Now()
	took := now.Sub(started)
	// One that is dear by itself was held up by what else the machine does, and one that
	// takes no longer than a claim is worth it: to leave the tenants out would be the
	// worse delay.
	excess := min(took, k.took) - max(freeExcess, k.claim)
	k.took = took
	k.failed = err != nil && took > freeExcess
	switch {
	case err != nil:
		k.paid = now.Add(max(took, budget*excess)) // claims go on without it
	case excess > 0:
		k.paid = now.Add(budget * excess)
	case len(rows) == 0 && !k.on(now):
		k.paid = now.Add(aloneRest)
	}
	if err != nil {
		return fmt.Errorf("look for tenants with keys in queue %s: %w", q.name, err)
	}
	k.note(rows, now)
	return nil
}

// forgive takes back what was charged: the database was away, and no look was too wide.
func (k *keyedTurns) forgive() bool {
	failed := k.failed
	if failed {
		k.paid, k.took, k.failed = time.Time{}, 0, false
	}
	return failed
}

// note takes in what a look has found.
func (k *keyedTurns) note(rows []sqlgen.FindKeyedTurnsRow, now time.Time) {
	k.above, k.found = outbox.ID{}, nil
	if len(rows) == 0 {
		return
	}
	k.seen = now
	k.found = &turns{map[outbox.ID][]pgtype.UUID{}, map[outbox.ID]bool{}}
	for _, row := range rows {
		if row.N >= maxTurnTenants {
			k.above = row.TenantID.Bytes
		}
		if row.ID.Valid { // a tenant whose jobs are all due later has none
			k.found.of[row.TenantID.Bytes] = append(k.found.of[row.TenantID.Bytes], row.ID)
			k.found.among[row.ID.Bytes] = true
		}
	}
}

// rest is how long to sleep, at most, if there is no room but for what goes ahead.
func (k *keyedTurns) rest(sleep time.Duration, now time.Time) time.Duration {
	if k.on(now) { // until the slots that are kept for them are everybody's again
		sleep = min(sleep, k.seen.Add(keyedLinger).Sub(now))
	}
	if !k.above.IsZero() { // tenants are left to look for
		sleep = min(sleep, surveyInterval)
	}
	if k.owed {
		sleep = min(sleep, k.paid.Sub(now))
	}
	return sleep
}

// most is how many jobs one claim may take now.
func (k *keyedTurns) most(now time.Time) int {
	if k.cost == 0 || !k.on(now) {
		return maxBatch
	}
	return max(int(turnTime/k.cost), leastTurn)
}

// noteCost records what a claim of n jobs took.
func (k *keyedTurns) noteCost(took time.Duration, n int) {
	if n < leastTurn/2 { // it tells the cost of a round trip, not of a job
		return
	}
	perJob := took / time.Duration(n)
	if k.cost == 0 {
		k.cost, k.claim = perJob, took
	}
	k.cost += (perJob - k.cost) / 8
	k.claim += (took - k.claim) / 8
}

// take returns what was found, for one claim.
func (k *keyedTurns) take() *turns {
	found := k.found
	k.found = nil
	return found
}

// jobs are those of all tenants, or of those that have no more than a few.
func (t *turns) jobs(fewOnly bool) (ids []pgtype.UUID) {
	if t == nil {
		return nil
	}
	for _, of := range t.of {
		if !fewOnly || len(of) <= sparse {
			ids = append(ids, of...)
		}
	}
	return ids
}

// goAhead marks the jobs of tenants that wait for no more than a few.
func (t *turns) goAhead(claimed []*attempt) {
	if t == nil {
		return
	}
	for _, a := range claimed {
		n := len(t.of[a.job.Tenant])
		a.ahead = 0 < n && n <= sparse
	}
}

// others are the attempts that the claim came to by itself: they alone tell how far it
// has come.
func (t *turns) others(claimed []*attempt) []*attempt {
	if t == nil {
		return claimed
	}
	return slices.DeleteFunc(slices.Clone(claimed), func(a *attempt) bool { return t.among[a.job.ID] })
}
