package reaper

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// How often the reaper looks for jobs whose deadline has come. Where nothing has a
// deadline and notifications arrive, the passes over the leases, which look a little
// ahead and now and then far back, are all there is. Where deadlines are in use, or
// we are deaf, one that nobody has announced is found by the poll.
const (
	deadlineIdle    = 10 * time.Minute
	deadlineSlow    = time.Minute            // instead, where looking far back takes long
	deadlinePoll    = 800 * time.Millisecond // while we are deaf, or one was seen lately:
	deadlineMemory  = time.Minute
	wholeLook       = 7                      // every so many looks is far back, unless
	wholeLookCost   = 20 * time.Millisecond  // the latest one took longer
	deadlineSpacing = 500 * time.Millisecond // between passes, however many wake-ups arrive
	// deadlinePatience is how long a running job is left to its worker, which stops
	// the handler by itself and keeps what it says.
	deadlinePatience = 300 * time.Millisecond
	deadlineBatch    = 500 // jobs; fewer after a statement that took too long
	// lookAhead is how far ahead deadlines and leases are looked for: to the next pass over the
	// leases. Further ahead there may be any number of entries of jobs that are done.
	lookAhead = quietInterval + expireJitter/2
)

// closer closes the jobs whose deadlines have come. Its passes use the same
// two kinds of spans as those over the leases, and for the same reason: a held
// snapshot keeps the index entry of every job that had a deadline. It is for one goroutine.
type closer struct {
	db        *sqlgen.Queries
	promoter  *promoter
	deadlines *deadlines
	wake      <-chan struct{}
	hearing   func() bool
	metrics   *metrics
	log       *slog.Logger

	scan  scan
	aside aside[pgtype.UUID]
	next  time.Time // when to make the next pass
	ended time.Time // the last one
	seen  time.Time // when there was a deadline last
	batch int32
}

// deadlines is what the passes over the deadlines and those over the leases know of them together.
type deadlines struct {
	// passed is the database's time before which, but for an overlap, no deadline is
	// left. The passes over the leases move it, too, when they find none.
	passed atomic.Pointer[time.Time]
	cheap  atomic.Bool    // to look far back
	sooner chan time.Time // by our clock: a pass over the leases has seen a deadline
	looks  int            // of the passes over the leases, which alone use it
}

func newDeadlines() *deadlines { return &deadlines{sooner: make(chan time.Time, 1)} }

// expire waits until a pass is due and makes it.
func (c *closer) expire(ctx context.Context) (time.Duration, error) {
	if !c.await(ctx) {
		return 0, nil
	}
	err := c.pass(ctx)
	c.ended = time.Now()
	return 0, err
}

// await sleeps until the next pass. A wake-up says that jobs were stored,
// and some may have a deadline.
func (c *closer) await(ctx context.Context) bool {
	wake := c.wake
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due := c.next
		if soonest := c.ended.Add(deadlineSpacing); due.Before(soonest) {
			due = soonest
		}
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case at := <-c.deadlines.sooner:
			c.next = earlier(c.next, at)
		case _, open := <-wake:
			if !open {
				wake = nil
				continue
			}
			c.next = earlier(c.next, time.Now())
		}
	}
}

// pass closes every job whose deadline has come, and sets the time of the
// next pass.
func (c *closer) pass(ctx context.Context) error {
	if passed := c.deadlines.passed.Load(); passed != nil {
		c.scan.passed = *passed
	}
	soonest, whole, cheap := math.Inf(1), false, false
	for _, s := range c.scan.spans(time.Now()) {
		cost, last, err := c.span(ctx, s)
		c.scan.note(s, cost, last.Now.Time, time.Now(), err)
		if err != nil {
			if isTimeout(err) {
				c.batch = max(c.batch/8, 1)
			}
			return fmt.Errorf("expire deadlines: %w", err)
		}
		soonest = min(soonest, last.NextInSeconds)
		whole = whole || s.near && s.sweep
		cheap = whole && cost < wholeLookCost
	}
	c.deadlines.advance(c.scan.passed)
	c.deadlines.cheap.Store(cheap)
	c.batch = min(2*c.batch, deadlineBatch)

	now := time.Now()
	if !math.IsInf(soonest, 1) {
		c.seen = now
	}
	wait := deadlineIdle
	if !cheap {
		wait = deadlineSlow
	}
	if !whole { // the rest, as soon as it is affordable
		wait = max(c.scan.sweepAfter.Sub(now), deadlinePoll)
	}
	if now.Sub(c.seen) < deadlineMemory || !c.hearing() {
		wait = min(wait, deadlinePoll)
	}
	c.next = earlier(now.Add(wait), after(now, soonest))
	return nil
}

// span closes the jobs whose deadline lies within the span, and returns
// what it cost to look for them, and what the last statement returned.
func (c *closer) span(ctx context.Context, s span) (cost time.Duration, last sqlgen.ExpireDeadlinesRow, err error) {
	params := sqlgen.ExpireDeadlinesParams{
		FromDeadline: s.from, BeforeDeadline: s.before, Overlap: pgvalue.Interval(overlap), Horizon: pgvalue.Interval(lookAhead), Patience: pgvalue.Interval(deadlinePatience), MaxJobs: c.batch,
	}
	began := time.Now()
	for {
		params.Aside = c.aside.names(began)
		var took time.Duration
		last, took, err = c.close(ctx, params)
		if pgsession.IsRefusal(err) {
			if err = c.apart(ctx, params, err); err == nil {
				continue // with what is left
			}
		}
		if err != nil {
			return cost + took, last, err
		}
		cost += max(took-time.Duration(last.Closed)*rowCost, 0)
		if last.Closed < int64(params.MaxJobs) {
			return cost, last, nil
		}
		params.FromDeadline = last.Reached // what lies before is closed, or locked by somebody
	}
}

// close is one statement, and what follows for the keys of what it closed. It returns how long the statement took, too.
func (c *closer) close(ctx context.Context, params sqlgen.ExpireDeadlinesParams) (row sqlgen.ExpireDeadlinesRow, took time.Duration, err error) {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	sent := time.Now()
	row, err = c.db.ExpireDeadlines(bound, params)
	took = time.Since(sent)
	cancel()
	if err != nil {
		return row, took, err
	}
	c.promoter.moveOn(ctx, keys{tenants: row.TenantIds, queues: row.Queues, names: row.Keys})
	if row.Closed > 0 {
		c.seen = time.Now()
		c.metrics.late.Add(float64(row.Closed))
		c.log.LogAttrs(ctx, slog.LevelInfo, "jobs expired: their deadlines had come", slog.Int64("jobs", row.Closed))
	}
	return row, took, nil
}

// apart closes the jobs of a statement that was refused in ever smaller parts. Those that are refused by themselves are
// left alone for a while. It returns the refusal if that got nowhere.
func (c *closer) apart(ctx context.Context, params sqlgen.ExpireDeadlinesParams, cause error) error {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	found, err := c.db.FindLateJobs(bound, sqlgen.FindLateJobsParams{
		FromDeadline: params.FromDeadline, BeforeDeadline: params.BeforeDeadline, Overlap: params.Overlap, Patience: params.Patience,
		Aside: params.Aside, MaxJobs: params.MaxJobs,
	})
	cancel()
	switch {
	case err != nil:
		return err
	case len(found) == 0:
		return cause
	}
	var tally refusals
	err = pgsession.Apart(found, func(part []sqlgen.FindLateJobsRow) error {
		params.FromDeadline = part[0].Deadline
		params.BeforeDeadline = instant(part[len(part)-1].Deadline.Time.Add(time.Microsecond))
		params.Among = params.Among[:0]
		for _, job := range part {
			params.Among = append(params.Among, job.ID)
		}
		row, _, err := c.close(ctx, params)
		tally.done += int(row.Closed)
		return err
	}, func(job sqlgen.FindLateJobsRow, err error) {
		c.aside.add(job.ID)
		tally.add(err, slog.String("job_id", job.ID.String()))
	})
	tally.log(ctx, c.log, "jobs not expired: the database refuses them")
	if err == nil && tally.refused+tally.done == 0 {
		return cause
	}
	return err
}

// lookFrom is where a pass over the leases begins to look for a deadline: from
// where the last one has come to, and now and then from the beginning, for what was
// stored or committed after its deadline and not announced.
func (d *deadlines) lookFrom() pgtype.Timestamptz {
	d.looks++
	if d.looks%wholeLook == 0 && d.cheap.Load() {
		return always
	}
	if passed := d.passed.Load(); passed != nil {
		return instant(passed.Add(-overlap))
	}
	return always
}

// noteHearing has the polling begin if it has to: we may have become deaf since the
// last pass over the deadlines.
func (d *deadlines) noteHearing(hearing bool) {
	if !hearing {
		d.hurry(time.Now())
	}
}

// noteLook takes what a pass over the leases saw from lookFrom on: the first
// deadline, in so many seconds, or none within lookAhead of the database's now.
func (d *deadlines) noteLook(dbNow time.Time, seconds float64) {
	if math.IsInf(seconds, 1) {
		d.advance(dbNow)
		return
	}
	d.hurry(after(time.Now(), seconds))
}

// hurry has the next pass over the deadlines begin by then.
func (d *deadlines) hurry(by time.Time) {
	select {
	case d.sooner <- by:
	default: // one is waiting; the next look tells again
	}
}

// advance moves passed forward; two goroutines do.
func (d *deadlines) advance(to time.Time) {
	for {
		passed := d.passed.Load()
		if passed != nil && !to.After(*passed) || d.passed.CompareAndSwap(passed, &to) {
			return
		}
	}
}

// after is so many seconds from now, and a moment more, so that the database's
// clock has come there, too; far away for infinity.
func after(now time.Time, seconds float64) time.Time {
	if seconds > deadlineIdle.Seconds() {
		return now.Add(deadlineIdle)
	}
	return now.Add(max(time.Duration(seconds*float64(time.Second)), 0) + time.Millisecond)
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
