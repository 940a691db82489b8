package dispatcher

import (
	"context"
	"log/slog"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/outbox"
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
	surveyInterval = 100 * time.Millisecond // between looks for other priorities while busy
	// Between two outages whose failed claims are no dear ones.
	forgiveInterval = 2 * time.Minute
)

// queue is one queue's part of the dispatcher: one goroutine claims, a number of
// them work.
type queue struct {
	*Dispatcher
	name        string
	concurrency int

	buffer chan *attempt // claimed, not started
	ahead  chan *attempt // those of them that do not queue up behind other tenants' jobs
	wake   chan struct{} // one slot: look again
	scan   scan
	keyed  keyedLook  // for jobs with a key
	limits limits     // what operators have set
	shared sharedLook // for jobs of tenants other than root
	kept   keptSlots  // for jobs that go ahead

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

	forgave   time.Time // when it was taken back what looks have cost; the claim loop's own
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
		ahead:       make(chan *attempt, config.Concurrency+maxPrefetch+d.batchRoom()+maxAhead),
		wake:        make(chan struct{}, 1),
		limit:       firstBatch,
		keyed:       newKeyedLook(),
		shared:      newSharedLook(),
		kept:        keptSlots{workers: config.Concurrency / keptPart},
	}
	q.kept.gate.Store(newGate(false))
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
	room := q.concurrency + prefetch - int(q.inHand.Load()) - q.kept.free()
	if room < max(1, min(prefetch/2, maxBatch)) { // with no prefetch, one slot is worth it
		return 0
	}
	if q.gathers {
		room += q.seats()
	}
	return min(room, maxBatch, int(q.fits()))
}

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
		q.shared.lanes.awaitWalk()
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
			if !q.pace(ctx) {
				return
			}
		case <-wait.C:
			q.metrics.polls.Inc()
		}
		near := q.purse.near.Swap(false)
		q.claimed = 0
		next, err := q.drain(ctx)
		away := false
		for err != nil && ctx.Err() == nil {
			q.noteError(err)
			q.complain(ctx, "claim failed", err, slog.String("queue", q.name))
			if !q.waitOut(ctx, retry.Next()) {
				return
			}
			away = q.returnOrphans(ctx) != nil || away
			next, err = q.drain(ctx)
		}
		if away && err == nil && q.forgive(time.Now()) { // neither did a look for a few rows go through
			next = 0
		}
		if near {
			q.purse.nearPays.Store(q.claimed > 0)
		}
		retry.Reset()
		wait.Reset(next)
	}
}

// forgive takes back what looks were charged that failed while the database was away, and
// reports whether it has. It does so seldom: where all that is slow is slow because of
// looks that are too wide, claims have to go on without these.
func (q *queue) forgive(now time.Time) bool {
	if now.Sub(q.forgave) < forgiveInterval {
		return false
	}
	forgiven := q.scan.forgive()
	forgiven = q.keyed.scan.forgive() || forgiven
	forgiven = q.keyed.turns.forgive() || forgiven
	forgiven = q.shared.lanes.forgive() || forgiven
	if forgiven {
		q.forgave = now
	}
	return forgiven
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
	q.shared.woken()
	if q.scan.surveyed.IsZero() { // the first claim, too, begins with the most urgent
		if _, _, err := q.survey(ctx); err != nil {
			return 0, err
		}
	}
	rounds := 0 // surveys that found something to claim
	for ctx.Err() == nil {
		q.keep()
		if err := q.probeKinds(ctx); err != nil {
			return 0, err
		}
		room := q.room()
		if room == 0 {
			q.hungry.Store(true)
			if room = q.room(); room == 0 { // workers that made room before the flag was up poke nobody
				sleep, err := q.lookAhead(ctx)
				if err == nil && q.keepsForNobody() {
					continue
				}
				return sleep, err
			}
			q.hungry.Store(false)
		}
		room = min(room, q.limit)
		n, err := q.claim(ctx, room)
		if err != nil {
			q.limit = max(room/2, 1) // it may have been too much for its deadline
			return 0, err
		}
		q.limit = min(2*q.limit, maxBatch)
		q.claimed += n
		if q.limits.stopped {
			return q.restAtLimit(ctx)
		}
		// A claim can fall short though more is due: a job that somebody else had and
		// gave back while the statement ran is left alone, and has used up one place.
		if n > room/2 && !q.scan.surveyDue() {
			continue
		}
		if n > 0 {
			rounds = 0
			runtime.Gosched() // handlers first: the next statement would keep this thread for its 50 µs
		}
		if 0 < n && n < room && len(q.wake) > 0 && !q.scan.surveyDue() {
			<-q.wake
			q.purse.near.Store(false) // it is answered by the next claim
			q.shared.woken()          // which has to walk for it: a new tenant's job may have been committed after the last walk
			continue
		}
		next, more, err := q.survey(ctx)
		if err != nil {
			return 0, err
		}
		if n < room && !more {
			return next, nil
		}
		if rounds++; n < room && rounds > maxRounds {
			return min(next, time.Second), nil
		}
	}
	return 0, nil
}

// maxRounds bounds a drain that keeps finding priorities: when more are in use
// than are remembered, they take turns.
const maxRounds = 2 * maxLevels

func (q *queue) pollInterval() time.Duration {
	if q.config.Hearing() {
		return q.config.PollInterval
	}
	return q.config.DeafPollInterval
}

// finished counts a job as no longer in hand and wakes the claim loop if it waits
// for room.
func (q *queue) finished(took time.Duration) {
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
		q.poke()
	}
}

// nextAttempt waits for the next job that a worker is to run, nil when the buffer
// is closed. When jobs wait both ahead and in the buffer, one is as likely as the
// other: neither holds the other up.
func (q *queue) nextAttempt() *attempt {
	if len(q.ahead) == 0 { // the usual case, at the price of one channel
		select {
		case a := <-q.buffer:
			return a
		default:
		}
	}
	select {
	case a := <-q.ahead:
		return a
	case a := <-q.buffer:
		return a
	}
}

// giveBackStale returns jobs that have waited in the buffer for long: the
// handlers became slower than they were when the jobs were fetched ahead. Only
// the claim loop calls it, because nobody else may send to the buffer, but for one job
// that has its own place there (reservation).
//
// Who has many come back from the buffer has more due than can start, however few its
// last claim found: its next ones do not go ahead, or they would have the slots that are
// kept for others.
func (q *queue) giveBackStale(now time.Time) {
	back := map[outbox.ID]int{}
	q.giveBackStaleOf(q.buffer, now, func(a *attempt) {
		if a.batch == nil && a.job.Key == "" {
			back[a.job.Tenant]++
		}
	})
	q.giveBackStaleOf(q.ahead, now, func(*attempt) {})
	for tenant, n := range back {
		if n > sparse {
			q.shared.filled.set(tenant, true)
		}
	}
}

func (q *queue) giveBackStaleOf(lane chan *attempt, now time.Time, note func(*attempt)) {
	for range len(lane) {
		select {
		case a := <-lane:
			if now.Sub(a.bufferedAt()) < staleAfter {
				lane <- a // to the back: the order is approximate anyway
				continue
			}
			note(a)
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
		case a := <-q.ahead:
			q.giveBack(a)
		default:
			return
		}
	}
}
