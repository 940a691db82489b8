package dispatcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/dispatcher/internal/health"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/scheduler"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/search"
	"github.com/posthaste-dev/posthaste/dispatcher/internal/wake"
	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/outage"
	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

const (
	firstBatch = 16 // jobs of the first claim: their size is not known
	// maxFruitless bounds a drain that keeps finding flows whose jobs are not for this process: when there are more
	// such flows than it remembers, each survey finds others.
	maxFruitless = 100
)

// loop is the claim loop of a queue, and the only goroutine of this process that claims from it.
type loop struct {
	*claimer
	pace wake.Pace
	tick <-chan time.Time // each second: there may be jobs to give back

	// Only the loop uses the following fields.
	claimed       int     // by the last drain
	answered      wake.By // that the last drain has looked for
	probeWaits    bool    // a kind is unavailable, and there was no room for a probe
	nextClaimMost int     // jobs that the next claim may ask for

	searches searches
}

func newLoop(c *claimer, finder *search.Finder) *loop {
	l := &loop{claimer: c, nextClaimMost: firstBatch}
	l.searches.claimer, l.searches.finder, l.searches.ended = c, finder, make(chan search.Answer, 1)
	l.pace.OwnFinds = true
	return l
}

// run claims until ctx ends.
func (l *loop) run(ctx context.Context) {
	var retry backoff.Backoff
	wait := time.NewTimer(0) // fires at once: the startup scan
	defer wait.Stop()
	tick := time.NewTicker(staleAfter / 2)
	defer tick.Stop()
	l.tick = tick.C
	defer l.searches.running.Wait()
	defer func() { // the stop may come in the middle of an outage
		l.reserved.close()
		if l.reserved.mayHaveOrphans(time.Now()) {
			_ = l.returnOrphans(l.waiting) // returnOrphans has logged the error
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-l.tick:
			l.giveBack(ctx, now)
			continue
		case <-l.capacity.Signal:
			if l.capacity.Woken() != wake.Nobody && !l.pace.Wait(ctx, l.capacity.Waker) {
				return
			}
		case now := <-wait.C:
			l.metrics.polls.Inc()
			l.sched.SleepEnded(now)
		}
		l.claimed, l.answered = 0, wake.Nobody
		l.capacity.DrainBegins()
		next, err := l.drain(ctx)
		for err != nil && ctx.Err() == nil {
			l.health.Failed(err)
			l.health.Complain(ctx, "claim failed", err, slog.String("queue", l.queue))
			if !health.WaitAtMost(ctx, retry.Next(), l.capacity.Signal) { // a listener that is back pokes the queue
				return
			}
			answers := l.returnOrphans(ctx) == nil // a small statement
			l.sched.ChargeFailure(whyFailed(err, answers))
			l.sched.Woken()
			next, err = l.drain(ctx)
		}
		if l.answered != wake.Nobody {
			l.pace.Looked(l.answered, l.claimed > 0)
		}
		retry.Reset()
		wait.Reset(next)
	}
}

// whyFailed says what the failure of a statement proves if the database answers another one, or does not.
func whyFailed(err error, answers bool) scheduler.Failure {
	switch {
	case answers && pgsession.IsRefusal(err):
		return scheduler.Refused
	case answers && errors.Is(err, context.DeadlineExceeded):
		return scheduler.TooMuch
	}
	return scheduler.Unrelated
}

// giveBack gives back jobs that have waited long for a worker, and looks for jobs of claims that were cut off.
func (l *loop) giveBack(ctx context.Context, now time.Time) {
	l.workers.giveBackStale(now)
	if l.reserved.mayHaveOrphans(now) {
		_ = l.returnOrphans(ctx) // returnOrphans has logged the error
	}
}

// drain claims until nothing due is left or there is no room. It returns how long to sleep unless something wakes the
// queue. It may last long, so it also does what run does each second, and looks for what notifications announce while
// it knows of due jobs. One that comes when it knows of none waits for a token, in run.
func (l *loop) drain(ctx context.Context) (time.Duration, error) {
	fruitless := 0 // surveys since a claim last got a job
	l.notice()
	for ctx.Err() == nil {
		select {
		case now := <-l.tick:
			l.giveBack(ctx, now)
		default:
		}
		l.searches.next(ctx)
		if err := l.probeKinds(ctx); err != nil {
			return 0, err
		}
		plan := l.plan()
		if plan.Expects() && l.notice() {
			plan = l.plan()
		}
		if l.sched.SurveyDue(time.Now()) {
			found, err := l.survey(ctx)
			if err != nil {
				return 0, err
			}
			if fruitless++; found && fruitless > maxFruitless {
				return min(l.sleep(), time.Second), nil
			}
			continue
		}
		if plan.Empty() {
			l.capacity.waitsForRoom.Store(l.sched.MayHaveDue() || l.keyed.Offered() > 0 || l.probeWaits)
			// Workers that made room before the flag was set have poked nobody.
			if plan = l.plan(); plan.Empty() {
				if l.probeWaits && l.capacity.room() > 0 {
					continue
				}
				return l.sleep(), nil
			}
		}
		l.capacity.waitsForRoom.Store(false)
		n, rest, err := l.claimNext(ctx, plan)
		if err != nil {
			l.nextClaimMost = max(l.nextClaimMost/2, 1) // the claim may have been too large for its deadline
			return 0, err
		}
		if l.claimed += n; n > 0 { // a claim that got none proves nothing
			l.nextClaimMost = min(2*l.nextClaimMost, maxBatch)
		}
		if rest > 0 {
			if l.sched.SurveyDue(time.Now()) { // a queue that is always at a limit must still learn of new priorities
				_, err = l.survey(ctx)
			}
			return rest, err
		}
		if n > 0 {
			fruitless = 0
			runtime.Gosched() // handlers first: the next statement would keep this thread for its 50 µs
		}
	}
	return 0, nil
}

// notice notes that any flow may have new jobs, if a notification has come or a poll interval has passed since it was
// noted last.
func (l *loop) notice() bool {
	if by := l.capacity.Take(); by != wake.Nobody {
		l.answered = max(l.answered, by)
	} else if l.pollAfter(time.Now()) > 0 {
		return false
	}
	l.sched.Woken()
	return true
}

// claimNext claims what the plan asks for, or what the queue's limits leave of it. It returns how many jobs it got and,
// if a limit or a pause kept it from taking more, how long to rest unless something wakes the queue.
func (l *loop) claimNext(ctx context.Context, plan scheduler.Plan) (n int, rest time.Duration, err error) {
	within, err := l.limiter.Look(l.waiting, min(l.places().Room, l.nextClaimMost))
	switch {
	case err != nil:
		return 0, 0, err
	case within == nil:
		n, err = l.claim(ctx, plan, nil)
		return n, 0, err
	case within.Conn == nil:
		return 0, l.limiter.Rest(within, 0), nil
	case within.Allowed == 0 || !plan.Probe: // a probe claims one job
		plan = l.planFor(within.Allowed)
	}
	if n, err = l.claim(ctx, plan, within); err != nil {
		return n, 0, err
	}
	return n, l.limiter.Rest(within, n), nil
}

func (l *loop) sleep() time.Duration {
	now := time.Now()
	return l.sched.Sleep(now, l.pollAfter(now))
}

func (l *loop) pollAfter(now time.Time) time.Duration {
	return l.sched.PollAfter(now, l.poll())
}

func (l *loop) plan() scheduler.Plan {
	p := l.planFor(l.nextClaimMost)
	if len(p.Kinds) == 0 {
		return scheduler.Plan{}
	}
	// A limited queue claims no more jobs than may start at once.
	l.workers.buffer.Share(p.Shared && !l.capacity.limits.Known())
	return p
}

func (l *loop) planFor(most int) scheduler.Plan {
	p := l.places()
	p.Room = min(p.Room, most)
	made := l.sched.Plan(time.Now(), p, l.keyed.OfferedOf())
	made.Kinds = l.circuits.Claimable()
	return made
}

func (l *loop) places() scheduler.Places { return l.capacity.places(l.workers.buffer.ExpressWaiting()) }

// probeKinds claims a job of each kind whose probe is due.
func (l *loop) probeKinds(ctx context.Context) error {
	if l.circuits.Back() {
		l.sched.StartFromFront()
		l.nextClaimMost = firstBatch // the dependency may soon be unavailable again
	}
	l.probeWaits = false
	for _, kind := range l.kinds {
		circuit := l.circuits.Of(kind)
		if circuit.State() == outage.Closed {
			continue
		}
		if l.probeWaits = l.capacity.room() == 0; l.probeWaits {
			return nil
		}
		if circuit.Probe() {
			started := time.Now()
			probe := l.sched.Probe()
			probe.Kinds = []string{kind}
			n, _, err := l.claimNext(ctx, probe)
			l.claimed += n
			if n == 0 { // an expensive look that finds none is repeated seldom
				circuit.NoProbe(scheduler.RestFactor * time.Since(started))
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// survey asks when the next job of each known flow becomes due, and which other tenants and priorities have jobs. It
// reports whether there is something to claim.
func (l *loop) survey(ctx context.Context) (found bool, err error) {
	s, started := l.sched, time.Now()
	coversGaps := s.CoversGaps(started)
	p := sqlgen.SurveyQueueParams{Queue: l.queue, Since: s.LastSurveyAt(), MaxNew: scheduler.MaxNewFlows}
	p.TenantIds, p.Priorities = pgFlows(s.Known(false))
	p.KeyedTenantIds, p.KeyedPriorities = pgFlows(s.Known(true))
	if asked, from := s.Asked(); len(asked) > 0 {
		p.AskedTenantIds, p.AskedPriorities = pgFlows(asked)
		for _, at := range from {
			p.AskedFrom = append(p.AskedFrom, pgvalue.From(at))
		}
		p.Kinds = l.circuits.Claimable()
	}
	if coversGaps {
		plain, keyed := s.Gaps(false), s.Gaps(true)
		p.GapFrom, p.GapTo, p.KeyedGapFrom, p.KeyedGapTo = pgIDs(plain.From), pgIDs(plain.To), pgIDs(keyed.From),
			pgIDs(keyed.To)
		p.LevelTenantIds, p.LevelFrom, p.LevelTo = pgIDs(plain.Of), plain.Lowest, plain.Highest
		p.KeyedLevelTenantIds, p.KeyedLevelFrom, p.KeyedLevelTo = pgIDs(keyed.Of), keyed.Lowest, keyed.Highest
	}
	bound, cancel := bounded(ctx)
	rows, err := l.db.SurveyQueue(bound, p)
	cancel()
	ended := time.Now()
	if err != nil {
		s.SurveyFailed(coversGaps, ended.Sub(started))
		return false, fmt.Errorf("survey queue %s: %w", l.queue, err)
	}
	at := pgtype.Timestamptz{}
	flows := make([]scheduler.SurveyRow, 0, len(rows))
	for _, row := range rows {
		at = row.SurveyedAt
		r := scheduler.SurveyRow{Keyed: row.Keyed, Flow: scheduler.Flow{
			Tenant:   row.TenantID.Bytes,
			Priority: row.Priority,
		}}
		switch {
		case math.IsNaN(row.DueInSeconds): // no job: the queue is paused or limited
			if l.capacity.limits.Found() {
				// Claims find out which. Those that have returned nothing for this reason have looked at no job, and
				// yet the cursors have moved on as if there were none.
				s.StartFromFront()
				found = true
			}
			continue
		case math.IsInf(row.DueInSeconds, 1): // no job: the time of the survey
			continue
		case math.IsInf(row.DueInSeconds, -1):
			r.Unknown = true
		default:
			r.Due = pgvalue.Seconds(row.DueInSeconds)
		}
		flows = append(flows, r)
	}
	return s.NoteSurvey(flows, at, coversGaps, started, ended) || found, nil
}

func pgIDs(ids []outbox.ID) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = pgvalue.UUID(id)
	}
	return all
}
