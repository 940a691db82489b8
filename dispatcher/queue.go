package dispatcher

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
)

const (
	defaultConcurrency = 64
	maxBatch           = 2000                  // jobs a claim
	maxPrefetch        = 6000                  // jobs claimed beyond what can run at once
	maxClaimBytes      = 32 << 20              // of a claim's payloads, as far as the last ones tell
	firstBatch         = 16                    // jobs of the first claim: their size is not known
	prefetchTime       = 40 * time.Millisecond // how long a job should wait in the buffer at most
	outlier            = 32                    // times the usual run of a job that is believed of one
	staleAfter         = 2 * time.Second       // a job that waited longer in the buffer goes back
	// For so long after a claim without an answer there may be jobs that nobody knows
	// of, and they are looked for.
	uncertainFor   = serverTimeout + 2*time.Second
	orphanInterval = time.Second
)

// queue is one queue's part of the dispatcher: one goroutine claims, a number of
// them work.
type queue struct {
	*Dispatcher
	name        string
	concurrency int

	buffer  chan *attempt // claimed, not started
	express chan *attempt // those of them whose tenant holds few: they do not wait behind others' jobs
	wake    chan struct{} // one slot: look again
	reserve reserve
	sched   *scheduler
	keyed   keyedClaims // for jobs with a key
	limits  limits      // what operators have set

	gathered gathered // claimed, and waiting for others of their kind
	standing standing // whether what is claimed may start
	reserved reserved // for a job that the own producer is about to commit
	outages  outages  // of what kinds need

	inHand   atomic.Int64 // claimed and not finished
	meanWork atomic.Int64 // nanoseconds of a handler's run, moving average
	meanSize atomic.Int64 // bytes of a payload, moving average
	claimed  int          // by the last drain; the claim loop's own
	purse    purse        // of wake-ups that may find nothing
	limit    int          // jobs that the next claim may ask for; the claim loop's own
	hungry   atomic.Bool  // the claim loop waits for room
	notified atomic.Bool  // something may have come, and the claim loop has not looked since

	uncertain time.Time // until then a claim that failed may yet commit; the claim loop's own
}

func newQueue(d *Dispatcher, name string, config QueueConfig) *queue {
	if config.Concurrency == 0 {
		config.Concurrency = defaultConcurrency
	}
	q := &queue{
		Dispatcher:  d,
		name:        name,
		concurrency: config.Concurrency,
		buffer:      make(chan *attempt, config.Concurrency+maxPrefetch+d.batchRoom()+1), // one that a commit has claimed
		express:     make(chan *attempt, config.Concurrency+maxPrefetch+d.batchRoom()+maxExpress),
		wake:        make(chan struct{}, 1),
		limit:       firstBatch,
		sched:       newScheduler(config.Concurrency),
		keyed:       newKeyedClaims(),
	}
	q.reserve.state.Store(&reserveState{changed: make(chan struct{})})
	q.purse.nearPays.Store(true)
	q.newOutages()
	return q
}

// prefetch is how many jobs may wait in the buffer: as many as the workers finish
// in prefetchTime. Short jobs are fetched far ahead, long ones not at all, so that
// no process hoards what another could start; large ones no further than memory allows.
func (q *queue) prefetch() int {
	mean := q.meanWork.Load()
	if mean == 0 || q.limits.on.Load() {
		return 0
	}
	return int(min(int64(q.concurrency)*int64(prefetchTime)/mean, maxPrefetch, q.fits()))
}

// fits is how many jobs of the usual size are not too much at a time.
func (q *queue) fits() int64 { return max(maxClaimBytes/max(q.meanSize.Load(), 1), 1) }

// room is how many jobs to claim now: 0 until a batch is worth a round trip.
func (q *queue) room() int {
	prefetch := q.prefetch()
	room := q.concurrency + prefetch - int(q.inHand.Load())
	if room < max(1, min(prefetch/2, maxBatch)) { // with no prefetch, one slot is worth it
		return 0
	}
	if q.gathers {
		room += q.seats()
	}
	return min(room, maxBatch, int(q.fits()))
}

// places is what there is room for now.
func (q *queue) places() places {
	p := places{room: min(q.room(), q.limit), capacity: q.concurrency + q.prefetch()}
	switch {
	case q.limits.on.Load(): // nothing is claimed beyond what may start at once
	case q.prefetch() > 0:
		p.express = min(maxExpress, q.prefetch()) - len(q.express)
	default: // another process may have a worker
		p.express = q.concurrency - int(q.inHand.Load())
	}
	return p
}

// plan is what the next claim asks for.
func (q *queue) plan() claimPlan {
	if len(q.claimable()) == 0 {
		return claimPlan{}
	}
	p := q.planFor(q.places())
	q.reserve.set(p.shared && !q.limits.on.Load()) // a limited queue claims no more than may start at once
	return p
}

func (q *queue) planFor(p places) claimPlan { return q.sched.plan(time.Now(), p, q.keyed.offeredOf()) }

// claimUntil claims until ctx ends. It is the only goroutine that claims for this
// queue in this process.
func (q *queue) claimUntil(ctx context.Context) {
	var retry backoff.Backoff
	wait := time.NewTimer(0) // the startup scan
	defer wait.Stop()
	stale := time.NewTicker(staleAfter / 2)
	defer stale.Stop()
	orphans := time.NewTicker(orphanInterval)
	defer orphans.Stop()
	defer func() { // a stop in the middle of an outage
		q.reserved.close()
		if q.inDoubt(time.Now()) {
			_ = q.returnOrphans(context.WithoutCancel(ctx)) // which has said so
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-stale.C:
			q.giveBackStale(now)
			continue
		case now := <-orphans.C:
			if q.inDoubt(now) {
				_ = q.returnOrphans(ctx) // which has said so
			}
			continue
		case <-q.wake:
			if q.notified.Load() && !q.pace(ctx) {
				return
			}
		case now := <-wait.C:
			q.metrics.polls.Inc()
			q.sched.timer(now)
		}
		near := q.purse.near.Swap(false)
		q.claimed = 0
		next, err := q.drain(ctx)
		for err != nil && ctx.Err() == nil {
			q.health.Failed(err)
			q.health.Complain(ctx, "claim failed", err, slog.String("queue", q.name))
			if !q.waitOut(ctx, retry.Next()) {
				return
			}
			away := q.returnOrphans(ctx) != nil // neither does a look for a few rows go through
			q.sched.settleFailure(away)
			q.sched.woken()
			next, err = q.drain(ctx)
		}
		if near {
			q.purse.nearPays.Store(q.claimed > 0)
		}
		retry.Reset()
		wait.Reset(next)
	}
}

// inDoubt reports whether there may be jobs that are held without being known.
func (q *queue) inDoubt(now time.Time) bool {
	return now.Before(q.uncertain) || q.reserved.inDoubt(now)
}

// waitOut waits before a claim is tried again, for less than told when something
// wakes the queue: the listener that is back knows that the database is. But not
// for less than the shortest wait: anybody may send notifications.
func (q *queue) waitOut(ctx context.Context, d time.Duration) bool {
	least := min(d, backoff.DefaultMin)
	select {
	case <-ctx.Done():
		return false
	case <-time.After(least):
	}
	select {
	case <-ctx.Done():
		return false
	case <-q.wake:
	case <-time.After(d - least):
	}
	return true
}

// drain claims until nothing due is left or there is no room, and returns how
// long to sleep unless something wakes the queue.
func (q *queue) drain(ctx context.Context) (time.Duration, error) {
	vain := 0 // surveys in a row that found flows of which a claim got nothing
	for ctx.Err() == nil {
		if q.notified.Swap(false) {
			q.sched.woken()
		}
		if err := q.probeKinds(ctx); err != nil {
			return 0, err
		}
		plan := q.plan()
		if q.sched.surveyDue(time.Now()) {
			found, err := q.survey(ctx)
			if err != nil {
				return 0, err
			}
			if vain++; found && vain > maxVain {
				return min(q.sleep(), time.Second), nil
			}
			continue
		}
		if plan.empty() {
			q.hungry.Store(q.sched.waits() || q.keyed.offered() > 0)
			if plan = q.plan(); plan.empty() { // workers that made room before the flag was up poke nobody
				return q.sleep(), nil
			}
		}
		q.hungry.Store(false)
		n, err := q.claim(ctx, plan, q.planFor)
		if err != nil {
			q.limit = max(q.limit/2, 1) // it may have been too much for its deadline
			return 0, err
		}
		q.limit = min(2*q.limit, maxBatch)
		q.claimed += n
		if q.limits.stopped {
			return q.restAtLimit(ctx)
		}
		if n > 0 {
			vain = 0
			runtime.Gosched() // handlers first: the next statement would keep this thread for its 50 µs
		}
	}
	return 0, nil
}

// maxVain bounds a drain that keeps finding flows whose jobs are not for this process: when
// there are more than it remembers, each survey finds others.
const maxVain = 100

func (q *queue) sleep() time.Duration { return q.sched.sleep(time.Now(), q.pollInterval()) }

func (q *queue) pollInterval() time.Duration {
	if q.config.Hearing() {
		return q.config.PollInterval
	}
	return q.config.DeafPollInterval
}

// finished counts a job as no longer in hand and wakes the claim loop if it waits
// for room.
func (q *queue) finished(of *tenant, took time.Duration) {
	if of != nil {
		of.inHand.Add(-1)
	}
	mean := q.meanWork.Load()
	if mean == 0 {
		mean = int64(took)
	}
	// One job that takes a thousand times as long as the others says little of them:
	// it counts as a few. Some in a row are believed all the same.
	took = min(took, time.Duration(outlier*mean))
	q.meanWork.Store(max(mean+(int64(took)-mean)/16, 1)) // a lost update does not matter
	q.inHand.Add(-1)
	if q.hungry.Load() && q.room() > 0 && q.hungry.CompareAndSwap(true, false) {
		q.roomMade()
	}
}

// nextAttempt waits for the next job that a worker is to run, nil when the buffer
// is closed. When jobs wait in both channels, select picks at random, so neither starves.
func (q *queue) nextAttempt() *attempt {
	if len(q.express) == 0 { // the usual case, at the price of one channel
		select {
		case a := <-q.buffer:
			return a
		default:
		}
	}
	select {
	case a := <-q.express:
		return a
	case a := <-q.buffer:
		return a
	}
}

// giveBackStale returns jobs that have waited in the buffer for long: the
// handlers became slower than they were when the jobs were fetched ahead. Only
// the claim loop calls it, because nobody else may send to the buffer, but for one job
// that has its own place there (reservation).
func (q *queue) giveBackStale(now time.Time) {
	q.giveBackStaleOf(q.buffer, now)
	q.giveBackStaleOf(q.express, now)
}

func (q *queue) giveBackStaleOf(claimed chan *attempt, now time.Time) {
	for range len(claimed) {
		select {
		case a := <-claimed:
			if now.Sub(a.bufferedAt()) < staleAfter {
				claimed <- a // to the back: the order is approximate anyway
				continue
			}
			q.giveBack(a)
			q.meanWork.Store(int64(staleAfter)) // fetch no further ahead until jobs are short again
		default:
			return
		}
	}
}

// giveBackBuffered returns what was claimed and has not started.
func (q *queue) giveBackBuffered() {
	q.giveBackGathered()
	for {
		select {
		case a := <-q.buffer:
			q.giveBack(a)
		case a := <-q.express:
			q.giveBack(a)
		default:
			return
		}
	}
}
