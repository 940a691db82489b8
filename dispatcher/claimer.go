package dispatcher

import (
	"context"
	"log/slog"
	"runtime"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

const (
	firstBatch = 16 // jobs of the first claim: their size is not known
	// For so long after a claim without an answer there may be jobs that nobody knows
	// of, and they are looked for.
	uncertainFor   = serverTimeout + 2*time.Second
	orphanInterval = time.Second
	// maxVain bounds a drain that keeps finding flows whose jobs are not for this process: when
	// there are more than it remembers, each survey finds others.
	maxVain = 100
)

// claimer claims for one queue, and is the only goroutine of this process that does. The scheduler says what the next
// claim asks for and how long to sleep; the claimer asks, gives the workers what it gets, and looks for what it got
// without hearing of it.
type claimer struct {
	*process
	queue     string
	db        claimStatements
	source    claimSource // the control pool
	limiter   *limiter
	intervals pollIntervals

	capacity *capacity
	sched    *scheduler
	keyed    *keyedClaims // for jobs with a key
	outages  *outages
	workers  *workers
	batches  *batches
	reserved *reserved // for a job that the own producer is about to commit
	leases   *leases
	promoter *promoter
	peers    *notifier
	pace     pace

	// The loop's own.
	claimed   int           // by the last drain
	limit     int           // jobs that the next claim may ask for
	probing   string        // the kind that the claim under way is a probe of
	uncertain time.Time     // until then a claim that failed may yet commit
	stopped   bool          // the last claim, by a limit or a pause; rest is how long to wait
	rest      time.Duration // until the next look, unless something wakes the queue
}

func newClaimer(p *process, queue string, db claimStatements, source claimSource, keyed *keyedClaims, w *workers) *claimer {
	c := &claimer{
		process: p, queue: queue, db: db, source: source, capacity: w.capacity, sched: newScheduler(w.capacity.concurrency),
		keyed: keyed, outages: w.outages, workers: w, limit: firstBatch,
	}
	c.pace.ownFinds.Store(true)
	return c
}

// claimStatements are those of a claimer besides the claiming ones.
type claimStatements interface {
	SurveyQueue(context.Context, sqlgen.SurveyQueueParams) ([]sqlgen.SurveyQueueRow, error)
	ReturnOrphans(context.Context, sqlgen.ReturnOrphansParams) (int64, error)
}

// claimSource is where claims are sent to.
type claimSource interface {
	claimJobs(context.Context, claimRequest) *claimBatch
	claimKeyed(context.Context, claimRequest) *claimBatch
}

// pollIntervals are the times between looks for what nobody has announced.
type pollIntervals struct {
	hearing        func() bool // wake-ups come
	poll, deafPoll time.Duration
}

func (p pollIntervals) now() time.Duration {
	if p.hearing() {
		return p.poll
	}
	return p.deafPoll
}

// run claims until ctx ends.
func (c *claimer) run(ctx context.Context) {
	var retry backoff.Backoff
	wait := time.NewTimer(0) // the startup scan
	defer wait.Stop()
	stale := time.NewTicker(staleAfter / 2)
	defer stale.Stop()
	orphans := time.NewTicker(orphanInterval)
	defer orphans.Stop()
	defer func() { // a stop in the middle of an outage
		c.reserved.close()
		if c.inDoubt(time.Now()) {
			_ = c.returnOrphans(context.WithoutCancel(ctx)) // which has said so
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-stale.C:
			c.workers.giveBackStale(now)
			continue
		case now := <-orphans.C:
			if c.inDoubt(now) {
				_ = c.returnOrphans(ctx) // which has said so
			}
			continue
		case <-c.capacity.wake:
			if c.capacity.notified.Load() && !c.pace.wait(ctx, c.claimed > 0, c.capacity.wake) {
				return
			}
		case now := <-wait.C:
			c.metrics.polls.Inc()
			c.sched.timer(now)
		}
		own := c.pace.own.Swap(false)
		c.claimed = 0
		next, err := c.drain(ctx)
		for err != nil && ctx.Err() == nil {
			c.health.Failed(err)
			c.health.Complain(ctx, "claim failed", err, slog.String("queue", c.queue))
			if !c.waitOut(ctx, retry.Next()) {
				return
			}
			away := c.returnOrphans(ctx) != nil // neither does a look for a few rows go through
			c.sched.settleFailure(away)
			c.sched.woken()
			next, err = c.drain(ctx)
		}
		if own {
			c.pace.ownFinds.Store(c.claimed > 0)
		}
		retry.Reset()
		wait.Reset(next)
	}
}

// inDoubt reports whether there may be jobs that are held without being known.
func (c *claimer) inDoubt(now time.Time) bool {
	return now.Before(c.uncertain) || c.reserved.inDoubt(now)
}

// waitOut waits before a claim is tried again, for less than d when something
// wakes the queue: the listener that is back knows that the database is. But not
// for less than the shortest wait: anybody may send notifications.
func (c *claimer) waitOut(ctx context.Context, d time.Duration) bool {
	least := min(d, backoff.DefaultMin)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(least):
	}
	select {
	case <-ctx.Done():
		return false
	case <-c.capacity.wake:
	case <-time.After(d - least):
	}
	return true
}

// drain claims until nothing due is left or there is no room, and returns how
// long to sleep unless something wakes the queue.
func (c *claimer) drain(ctx context.Context) (time.Duration, error) {
	vain := 0 // surveys in a row that found flows of which a claim got nothing
	for ctx.Err() == nil {
		if c.capacity.notified.Swap(false) {
			c.sched.woken()
		}
		if err := c.probeKinds(ctx); err != nil {
			return 0, err
		}
		plan := c.plan()
		if c.sched.surveyDue(time.Now()) {
			found, err := c.survey(ctx)
			if err != nil {
				return 0, err
			}
			if vain++; found && vain > maxVain {
				return min(c.sleep(), time.Second), nil
			}
			continue
		}
		if plan.empty() {
			c.capacity.hungry.Store(c.sched.waits() || c.keyed.offered() > 0)
			if plan = c.plan(); plan.empty() { // workers that made room before the flag was up poke nobody
				return c.sleep(), nil
			}
		}
		c.capacity.hungry.Store(false)
		n, err := c.claim(ctx, plan, c.planFor)
		if err != nil {
			c.limit = max(c.limit/2, 1) // it may have been too much for its deadline
			return 0, err
		}
		c.limit = min(2*c.limit, maxBatch)
		c.claimed += n
		if c.stopped {
			return c.restAtLimit(ctx)
		}
		if n > 0 {
			vain = 0
			runtime.Gosched() // handlers first: the next statement would keep this thread for its 50 µs
		}
	}
	return 0, nil
}

func (c *claimer) sleep() time.Duration { return c.sched.sleep(time.Now(), c.intervals.now()) }

// plan is what the next claim asks for.
func (c *claimer) plan() claimPlan {
	if len(c.claimable()) == 0 {
		return claimPlan{}
	}
	p := c.planFor(c.places())
	c.workers.reserve.set(p.shared && !c.capacity.limited.Load()) // a limited queue claims no more than may start at once
	return p
}

func (c *claimer) planFor(p places) claimPlan {
	return c.sched.plan(time.Now(), p, c.keyed.offeredOf())
}

// places is what the next claim may ask for.
func (c *claimer) places() places {
	p := c.capacity.places(len(c.workers.express))
	p.room = min(p.room, c.limit)
	return p
}

// claimable is the kinds that the next claim is for.
func (c *claimer) claimable() []string {
	if c.probing != "" {
		return []string{c.probing}
	}
	return c.outages.claimable()
}

// probeKinds claims a job of each kind of which a probe is due.
func (c *claimer) probeKinds(ctx context.Context) error {
	if c.outages.back.Swap(false) {
		c.sched.startFromFront()
		c.limit = firstBatch // what was away may soon be away again
	}
	if c.outages.some.Load() == 0 {
		return nil
	}
	for _, kind := range c.kinds {
		if c.capacity.room() == 0 {
			return nil
		}
		if circuit := c.outages.of[kind]; circuit.Probe() {
			started := time.Now()
			n, err := c.claimProbe(ctx, kind)
			c.claimed += n
			if n == 0 { // where it is expensive to find none, it is done seldom
				circuit.NoProbe(restFactor * time.Since(started))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// claimProbe claims a job of the kind, wherever one is.
func (c *claimer) claimProbe(ctx context.Context, kind string) (n int, err error) {
	c.probing = kind
	defer func() { c.probing = "" }()
	plain, keyed := c.sched.probe(time.Now())
	for _, p := range []claimPlan{plain, keyed} {
		if n == 0 && err == nil && !p.empty() {
			n, err = c.claim(ctx, p, func(places) claimPlan { return p })
		}
	}
	return n, err
}
