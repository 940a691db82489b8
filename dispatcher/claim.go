package dispatcher

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/circuit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/lease"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/limit"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/promote"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// claimer leases jobs of one queue and gives them to its workers.
type claimer struct {
	*common
	queue   string
	db      queueStatements
	pool    querier // for claims that no limit bounds
	claims  claimStatement
	limiter *limit.Limiter

	capacity *capacity
	circuits *circuit.Circuits
	sched    *scheduler.Scheduler
	keyed    *scheduler.Keyed
	workers  *workers
	batches  *batches
	reserved *reserved // for a job that the attached producer is about to commit
	leases   *lease.Keeper
	promoter *promote.Promoter
	peers    *notifier
}

// queueStatements are the statements of a claim loop besides its claims.
type queueStatements interface {
	SurveyQueue(context.Context, sqlgen.SurveyQueueParams) ([]sqlgen.SurveyQueueRow, error)
	ReturnOrphans(context.Context, sqlgen.ReturnOrphansParams) (int64, error)
}

// claimStatement is [claims], or a test's.
type claimStatement interface {
	claim(context.Context, querier, claimRequest) *claimBatch
}

// claim leases the jobs that the plan asks for and gives them to the workers. Jobs with a key reach the workers before
// the statement for the others is sent. If the queue has limits, claim also ends their transaction, and no job starts
// before its commit; within is nil if it has none.
func (c *claimer) claim(ctx context.Context, p scheduler.Plan, within *limit.Usage) (n int, err error) {
	var untaken []*claimBatch
	for _, keyed := range []bool{!p.Probe, p.Probe} {
		if len(p.Shares(keyed)) == 0 || err != nil || p.Probe && n > 0 {
			continue
		}
		b := c.lease(ctx, p, keyed, within)
		if within == nil {
			err = c.take(ctx, b)
		} else {
			for _, a := range b.claimed {
				within.Add(a.job.ID, a.job.StartedAt)
			}
			untaken, err = append(untaken, b), b.err
		}
		if err == nil {
			n += len(b.claimed)
		}
	}
	if within == nil {
		return n, err
	}
	defer within.Conn.Release() // after an error with an open transaction: the pool closes the connection
	if err == nil {
		err = c.limiter.Commit(c.waiting, within, n > 0)
	}
	if err != nil {
		n, err = 0, fmt.Errorf("claim %d jobs of a limited queue: %w", within.Allowed, err)
	}
	for _, b := range untaken {
		b.err = cmp.Or(b.err, err)
		err = cmp.Or(err, c.take(ctx, b))
	}
	return n, err
}

// lease leases jobs with a key, or jobs without one. within is nil if the queue has no limits.
func (c *claimer) lease(ctx context.Context, plan scheduler.Plan, keyed bool, within *limit.Usage) *claimBatch {
	started, shares := time.Now(), plan.Shares(keyed)
	r := claimRequest{
		keyed: keyed, shares: shares, kinds: plan.Kinds, room: plan.Room(shares), probe: plan.Probe,
		limits: within != nil,
		front:  plan.Probe || c.sched.AtFront(keyed, started), frontAt: c.sched.Front(keyed),
	}
	var offers scheduler.Offers
	if keyed {
		r.lookaheads, r.offered, offers = c.keyed.Aim(shares, r.room, plan.Probe)
	}
	// A claim that is cut off may have committed, and its jobs would wait for their leases to lapse. So a stop lets the
	// statement finish.
	bound, cancel := bounded(c.waiting)
	defer cancel()
	db := c.pool
	if within != nil {
		db = within.Conn
	}
	b := c.claims.claim(bound, db, r)
	b.request, b.ended = r, time.Now()
	took := b.ended.Sub(started)
	switch {
	case b.err != nil:
		if !plan.Probe {
			c.sched.Failed(keyed, shares, r.front, took)
		}
		c.keyed.Failed(offers)
		return b
	case plan.Probe:
		return b
	}
	b.offers, b.extent = offers, scheduler.Extent{Front: r.front, Took: took, Looked: len(b.claimed)}
	if keyed {
		b.extent.Looked, b.extent.Locked = int(b.tally.Looked), b.tally.Passed > 0
		b.extent.More = c.keyed.Note(b.tally.Tally, len(b.claimed), r.room, r.lookaheads)
		b.extent.Few = len(plan.Plain) > 0 && len(b.claimed) < r.room/4
	}
	return b
}

// learn notes how far a claim came, once its jobs are really ours.
func (c *claimer) learn(b *claimBatch) {
	r := b.request
	if r.probe {
		return
	}
	jobs := leasedBy(b.claimed, r.offered)
	if len(r.offered) > 0 {
		c.keyed.Claimed(r.shares, b.offers, jobs)
	}
	c.sched.Claimed(r.keyed, r.shares, jobs, b.extent, b.ended)
	takeTurns(r.shares, b.claimed)
}

func flowOf(job *outbox.Claimed) scheduler.Flow {
	return scheduler.Flow{Tenant: job.Tenant, Priority: int16(job.Priority)}
}

func positionOf(job *outbox.Claimed) scheduler.Position {
	return scheduler.Position{RunAt: job.RunAt, ID: job.ID}
}

// leasedBy converts the jobs of a claim for the scheduler, and marks those that were offered.
func leasedBy(claimed []*attempt, offers []pgtype.UUID) []scheduler.Leased {
	offered := idSet(offers)
	jobs := make([]scheduler.Leased, 0, len(claimed))
	for _, a := range claimed {
		jobs = append(jobs, scheduler.Leased{
			Flow: flowOf(a.job), At: positionOf(a.job), GoesBack: a.returned,
			Offered: offered[a.job.ID],
		})
	}
	return jobs
}

// takeTurns orders jobs so that the first of each tenant come before the second of any.
func takeTurns(shares []scheduler.Share, claimed []*attempt) {
	if len(shares) < 2 {
		return
	}
	rank := make(map[*attempt]int, len(claimed))
	seen := map[outbox.ID]int{}
	for _, a := range claimed { // by urgency
		rank[a] = seen[a.job.Tenant]
		seen[a.job.Tenant]++
	}
	slices.SortStableFunc(claimed, func(a, b *attempt) int { return cmp.Compare(rank[a], rank[b]) })
}

// noteLost notes a claim that failed and may have been committed all the same: its answer was lost, or that of its
// COMMIT. It may have leased jobs, and blocked others behind jobs that have ended since.
func (c *claimer) noteLost(b *claimBatch) {
	c.keyed.PutBack(b.offers)
	c.reserved.noteUnanswered()
	c.promoter.Blocked(b.tally.halted)
}

// take gives the jobs of a claim to the workers.
func (c *claimer) take(ctx context.Context, b *claimBatch) error {
	if len(b.claimed) > 0 {
		c.capacity.noteSize(int64(b.size / len(b.claimed))) // also after a claim that broke off
	}
	if n := len(b.claimed); b.err == nil && n > b.request.room { // they go back, as those of a lost answer do
		b.err = fmt.Errorf("got %d; refusing to go on with a plan that breaks the limit", n)
	}
	if b.err != nil {
		c.noteLost(b)
		return fmt.Errorf("claim %d jobs: %w", b.request.room, b.err)
	}
	c.learn(b)
	c.promoter.Blocked(b.tally.halted)
	c.health.OK()
	c.metrics.claimBatch.Observe(float64(len(b.claimed)))

	c.leases.Add(leasesOf(b.claimed))
	surplus, together, now := 0, 0, time.Now()
	c.attribute(b.claimed, now)
	for _, a := range b.claimed {
		a.route.counts.claimed.Inc()
		switch {
		case a.returned:
			surplus++
			c.workers.returnUnstarted(a)
		case a.route.many != nil:
			together++
			c.batches.gather(a)
		default:
			c.workers.buffer.Put(a, a.tenant.InHand.Load() <= scheduler.Sparse && !a.tenant.HasMore &&
				c.sched.Several())
		}
	}
	c.batches.noteClaim(len(b.claimed), together)
	if surplus > 0 {
		c.log.LogAttrs(ctx, slog.LevelInfo, "jobs given back: they are larger than the ones before",
			slog.String("queue", c.queue), slog.Int("jobs", surplus), slog.Int("bytes", b.size))
	}
	return nil
}

// attribute counts the jobs that go to the workers one by one as in hand, and as held by their tenants. It counts all
// jobs of a claim before the first is delivered: a tenant that gets more than a few from it has no express jobs.
func (c *claimer) attribute(claimed []*attempt, now time.Time) {
	single := 0
	for _, a := range claimed {
		a.arrived = now
		if !a.returned && a.route.many == nil {
			a.tenant = c.sched.Tenant(a.job.Tenant)
			a.tenant.InHand.Add(1)
			single++
		}
	}
	c.capacity.inHand.Add(int64(single))
}

// returnOrphans gives back jobs that a failed claim may have leased: "The claim whose answer is lost" (docs/races.md).
// The queue's own loop calls it, so no other claim of this queue is under way, and the worker's name is unique to this
// process. A job of a statement that commits after the last call waits for its lease to lapse.
func (c *claimer) returnOrphans(ctx context.Context) error {
	bound, cancel := bounded(ctx)
	defer cancel()
	n, err := c.db.ReturnOrphans(bound, sqlgen.ReturnOrphansParams{
		Queue: c.queue, Worker: c.worker,
		Held: c.reserved.ask(),
	})
	c.reserved.asked()
	if err != nil && !pgsession.IsUnreachable(err) { // the claim has complained of that already
		c.health.Complain(ctx, "jobs of a claim that was cut off not given back", err, slog.String("queue", c.queue))
	}
	if n > 0 {
		c.capacity.Poke()
		c.peers.notify()
		c.log.LogAttrs(ctx, slog.LevelInfo, "jobs of a claim that was cut off given back",
			slog.String("queue", c.queue), slog.Int64("jobs", n))
	}
	return err
}
