package dispatcher

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claim leases what the plan asks for and gives it to the workers; the claim of a queue with
// limits makes another plan, for what they leave room for. It returns how many jobs it got.
func (c *claimer) claim(ctx context.Context, p claimPlan, again func(places) claimPlan) (int, error) {
	if c.stopped = false; c.capacity.limited.Load() {
		n, err := c.claimLimited(ctx, again)
		if err != nil || c.capacity.limited.Load() {
			return n, err
		}
	}
	return c.claimFrom(ctx, c.source, p, func(b *claimBatch) error { return c.take(ctx, b) })
}

// claimFrom leases what the plan asks for and hands it on, as one batch or two.
func (c *claimer) claimFrom(ctx context.Context, from claimSource, p claimPlan, hand func(*claimBatch) error) (n int, err error) {
	if len(p.keyed) > 0 {
		if n, err = c.claimKeyed(ctx, from, p, hand); err != nil {
			return n, err
		}
	}
	if len(p.plain) > 0 {
		var plain int
		plain, err = c.claimPlain(ctx, from, p, hand)
		n += plain
	}
	return n, err
}

// request is what a claim of such shares of the plan is to lease.
func (c *claimer) request(plan claimPlan, shares []share, cs *cursors, now time.Time) claimRequest {
	return claimRequest{shares: shares, front: plan.probe || cs.front.allows(now), kinds: c.claimable(), room: plan.room(shares)}
}

// claimPlain leases jobs without a key.
func (c *claimer) claimPlain(ctx context.Context, from claimSource, plan claimPlan, hand func(*claimBatch) error) (int, error) {
	cs, started := &c.sched.plain, time.Now()
	r := c.request(plan, plan.plain, cs, started)

	// A claim that is cut off may have committed: its jobs would wait for their
	// leases to lapse. So a stop lets the statement finish.
	bound, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	b := from.claimJobs(bound, r)
	ended := time.Now()
	if b.err != nil {
		c.sched.failed(cs, r.front, ended.Sub(started))
		return 0, hand(b)
	}
	if plan.probe {
		return len(b.claimed), hand(b)
	}
	cs.cost(r.front, ended, ended.Sub(started), len(b.claimed))
	b.learn = func() {
		c.sched.claimed(cs, plan.plain, b.claimed, extent{front: r.front}, ended)
		takeTurns(b.claimed)
	}
	return len(b.claimed), hand(b)
}

// claimKeyed leases jobs with a key.
func (c *claimer) claimKeyed(ctx context.Context, from claimSource, plan claimPlan, hand func(*claimBatch) error) (int, error) {
	k, cs, started := c.keyed, &c.sched.keyed, time.Now()
	r := c.request(plan, plan.keyed, cs, started)
	furthest, offers := k.aim(&r)

	bound, cancel := bounded(context.WithoutCancel(ctx)) // as in claimPlain
	defer cancel()
	b := from.claimKeyed(bound, r)
	ended := time.Now()
	if b.err != nil {
		c.sched.failed(cs, r.front, ended.Sub(started))
		k.putBack(offers)
		return 0, hand(b)
	}
	if plan.probe {
		return len(b.claimed), hand(b)
	}
	cs.cost(r.front, ended, ended.Sub(started), int(b.tally.looked))
	more := k.note(b.tally, len(b.claimed), r.room, furthest)
	if c.sched.keyedPause = (time.Time{}); len(plan.plain) > 0 && len(b.claimed) < r.room/4 {
		c.sched.keyedPause = ended.Add(keyedPause) // a commit for a job or two would hold up thousands of the others
	}
	b.learn = func() {
		c.sched.claimed(cs, plan.keyed, withoutOffers(b.claimed, r.offered), extent{r.front, more, b.tally.passed > 0}, ended)
		takeTurns(b.claimed)
	}
	return len(b.claimed), hand(b)
}

// take gives the workers what a claim has leased.
func (c *claimer) take(ctx context.Context, b *claimBatch) error {
	if len(b.claimed) > 0 {
		c.capacity.noteSize(int64(b.size / len(b.claimed))) // of a claim that broke off, too
	}
	if b.err != nil {
		c.uncertain = time.Now().Add(uncertainFor)
		return fmt.Errorf("claim %d jobs: %w", b.room, b.err)
	}
	if b.learn != nil {
		b.learn()
	}
	c.promoter.blocked(b.tally.halted)
	if len(b.claimed) > b.room {
		return fmt.Errorf("claim %d jobs: got %d; refusing to go on with a plan that breaks the limit", b.room, len(b.claimed))
	}
	c.health.OK()
	c.metrics.claimBatch.Observe(float64(len(b.claimed)))

	c.leases.add(b.claimed)
	c.capacity.inHand.Add(int64(len(b.claimed)))
	surplus, together, now := 0, 0, time.Now()
	if len(b.claimed) > 0 {
		c.workers.pause.noteOpen(b.claimed[0].claimed, now)
	}
	for _, a := range b.claimed {
		a.arrived = now
		a.route.counts.claimed.Inc()
		switch {
		case a.unused:
			surplus++
			c.capacity.inHand.Add(-1)
			c.workers.returnUnstarted(a)
		case a.route.many != nil:
			together++
			c.capacity.inHand.Add(-1) // its batch will take a slot
			c.batches.gather(a)
		default:
			c.deliver(a)
		}
	}
	c.batches.noteClaim(len(b.claimed), together)
	if surplus > 0 {
		c.log.LogAttrs(ctx, slog.LevelInfo, "jobs given back: they are larger than the ones before",
			slog.String("queue", c.queue), slog.Int("jobs", surplus), slog.Int("bytes", b.size))
	}
	return nil
}

// deliver gives a job to the workers, past the buffer if its tenant holds few.
func (c *claimer) deliver(a *attempt) {
	a.tenant = c.sched.tenant(a.job.Tenant, a.arrived)
	if held := a.tenant.inHand.Add(1); held <= sparse && !a.tenant.more && c.sched.several() {
		c.workers.deliverExpress(a)
		return
	}
	c.workers.deliver(a)
}

// returnOrphans gives back what a failed claim may have leased: the statement can
// have committed before its connection broke. Nothing else would know of these
// jobs until their leases lapse. The queue's own loop calls it, so no claim of
// this queue is under way, and the worker's name is this process's alone. The
// statement may also commit later: the server need not notice soon that nobody
// waits for its answer. So the loop asks again until it has run out of time, and
// once more when it ends; what commits after that waits for its lease to lapse.
func (c *claimer) returnOrphans(ctx context.Context) error {
	bound, cancel := bounded(ctx)
	defer cancel()
	n, err := c.db.ReturnOrphans(bound, sqlgen.ReturnOrphansParams{Queue: c.queue, Worker: c.worker, Held: c.reserved.ask()})
	c.reserved.asked()
	if err != nil && !pgsession.IsUnreachable(err) { // that is said of the claim
		c.health.Complain(ctx, "jobs of a claim that was cut off not given back", err, slog.String("queue", c.queue))
	}
	if n > 0 {
		c.capacity.poke()
		c.peers.notify()
		c.log.LogAttrs(ctx, slog.LevelInfo, "jobs of a claim that was cut off given back", slog.String("queue", c.queue), slog.Int64("jobs", n))
	}
	return err
}

// survey asks when the next job of each known flow becomes due, and which tenants and
// priorities there are besides. It reports whether there is something to claim.
func (c *claimer) survey(ctx context.Context) (found bool, err error) {
	s, started := c.sched, time.Now()
	search := s.searches(started)
	p := sqlgen.SurveyQueueParams{Queue: c.queue, Since: s.since, MaxNew: maxNewFlows}
	p.TenantIds, p.Priorities = s.plain.known()
	p.KeyedTenantIds, p.KeyedPriorities = s.keyed.known()
	if search {
		plain, keyed := s.plain.gaps(s.served), s.keyed.gaps(s.served)
		p.GapFrom, p.GapTo, p.KeyedGapFrom, p.KeyedGapTo = pgIDs(plain.from), pgIDs(plain.to), pgIDs(keyed.from), pgIDs(keyed.to)
		p.LevelTenantIds, p.LevelFrom, p.LevelTo = pgIDs(plain.of), plain.lowest, plain.highest
		p.KeyedLevelTenantIds, p.KeyedLevelFrom, p.KeyedLevelTo = pgIDs(keyed.of), keyed.lowest, keyed.highest
	}
	bound, cancel := bounded(ctx)
	rows, err := c.db.SurveyQueue(bound, p)
	cancel()
	ended := time.Now()
	if err != nil {
		s.surveyFailed(search, ended.Sub(started))
		return false, fmt.Errorf("survey queue %s: %w", c.queue, err)
	}
	at := pgtype.Timestamptz{}
	told := make([]surveyRow, 0, len(rows))
	for _, row := range rows {
		at = row.SurveyedAt
		r := surveyRow{keyed: row.Keyed, flow: flow{row.TenantID.Bytes, row.Priority}}
		switch {
		case math.IsNaN(row.DueInSeconds): // no job: the queue is paused or limited
			if !c.capacity.limited.Swap(true) {
				s.woken() // claims tell which
				found = true
			}
			continue
		case math.IsInf(row.DueInSeconds, 1): // no job: the time of the survey
			continue
		case math.IsInf(row.DueInSeconds, -1):
			r.unknown = true
		default: // the year 9999 is no time.Duration
			r.due = time.Duration(min(row.DueInSeconds, farOff.Seconds()) * float64(time.Second))
		}
		told = append(told, r)
	}
	return s.noteSurvey(told, at, search, started, ended) || found, nil
}

const (
	// maxNewFlows bounds what a survey finds: there is another one after the next claim.
	maxNewFlows = 256
	// farOff is more than any poll interval: what is due later need not be told apart.
	farOff = 24 * time.Hour
)

func pgIDs(ids []outbox.ID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = pgvalue.UUID(id)
	}
	return all
}
