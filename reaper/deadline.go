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

// These set how often the reaper looks for jobs whose deadline has passed. Where nothing has a deadline and
// notifications arrive, the passes over the leases suffice, which look a little ahead and now and then far back. Where
// deadlines are in use, or notifications do not arrive, the poll finds those that nobody has announced.
const (
	deadlineIdle    = 10 * time.Minute
	deadlineSlow    = time.Minute            // replaces deadlineIdle where looking far back takes long
	deadlinePoll    = 800 * time.Millisecond // while not listening, and for deadlineMemory after a deadline was seen
	deadlineMemory  = time.Minute
	wholeLook       = 7                      // one in so many looks goes far back
	wholeLookCost   = 20 * time.Millisecond  // if the latest pass took longer, no look goes far back
	deadlineSpacing = 500 * time.Millisecond // between passes, however many wake-ups arrive
	// deadlinePatience is how long a running job stays with its worker, which stops the handler on its own and records
	// the handler's error.
	deadlinePatience = 300 * time.Millisecond
	deadlineBatch    = 500 // jobs per statement; fewer after one that took too long
	// lookAhead is how far ahead the reaper looks for deadlines and leases: to the next pass over the leases. Further
	// ahead there may be any number of entries of finished jobs.
	lookAhead = quietInterval + expireJitter/2
)

// A deadlineExpirer closes the jobs whose deadlines have passed. Its passes use the same two kinds of spans as those
// over the leases, and for the same reason: a held snapshot keeps the index entry of every job that had a deadline.
// Only one goroutine may use it.
type deadlineExpirer struct {
	db        *sqlgen.Queries
	promoter  *promoter
	deadlines *deadlines
	wake      <-chan struct{}
	listening func() bool
	metrics   *metrics
	log       *slog.Logger

	scan    scan
	skipped skipped[pgtype.UUID]
	next    time.Time // when to make the next pass
	ended   time.Time // when the last pass ended
	seen    time.Time // when a deadline was last seen
	batch   int32
}

// deadlines is shared by the passes over the deadlines and those over the leases.
type deadlines struct {
	// passed is the database's time before which no deadline is left, except within an overlap. The passes over the
	// leases advance it, too, when they find none.
	passed atomic.Pointer[time.Time]
	cheap  atomic.Bool    // whether looking far back is cheap
	sooner chan time.Time // by our clock: when a deadline that a pass over the leases saw falls due
	looks  int            // count of the passes over the leases, which alone use it
}

func newDeadlines() *deadlines { return &deadlines{sooner: make(chan time.Time, 1)} }

// expire waits until a pass is due and makes it.
func (e *deadlineExpirer) expire(ctx context.Context) (time.Duration, error) {
	if !e.await(ctx) {
		return 0, nil
	}
	err := e.pass(ctx)
	e.ended = time.Now()
	return 0, err
}

// await sleeps until the next pass. A wake-up means that jobs were stored, and some may have a deadline.
func (e *deadlineExpirer) await(ctx context.Context) bool {
	wake := e.wake
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due := e.next
		if soonest := e.ended.Add(deadlineSpacing); due.Before(soonest) {
			due = soonest
		}
		timer.Reset(time.Until(due))
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case at := <-e.deadlines.sooner:
			e.next = earlier(e.next, at)
		case _, open := <-wake:
			if !open {
				wake = nil
				continue
			}
			e.next = earlier(e.next, time.Now())
		}
	}
}

// pass closes every job whose deadline has passed, and sets the time of the next pass.
func (e *deadlineExpirer) pass(ctx context.Context) error {
	if passed := e.deadlines.passed.Load(); passed != nil {
		e.scan.passed = *passed
	}
	soonest, whole, cheap := math.Inf(1), false, false
	for _, s := range e.scan.spans(time.Now()) {
		cost, last, err := e.span(ctx, s)
		e.scan.note(s, cost, last.Now.Time, time.Now(), err)
		if err != nil {
			if isTimeout(err) {
				e.batch = max(e.batch/8, 1)
			}
			return fmt.Errorf("expire deadlines: %w", err)
		}
		soonest = min(soonest, last.NextInSeconds)
		whole = whole || s.recent && s.full
		cheap = whole && cost < wholeLookCost
	}
	e.deadlines.advance(e.scan.passed)
	e.deadlines.cheap.Store(cheap)
	e.batch = min(2*e.batch, deadlineBatch)

	now := time.Now()
	if !math.IsInf(soonest, 1) {
		e.seen = now
	}
	wait := deadlineIdle
	if !cheap {
		wait = deadlineSlow
	}
	if !whole { // look at the rest as soon as that is affordable
		wait = max(e.scan.fullAfter.Sub(now), deadlinePoll)
	}
	if now.Sub(e.seen) < deadlineMemory || !e.listening() {
		wait = min(wait, deadlinePoll)
	}
	e.next = earlier(now.Add(wait), after(now, soonest))
	return nil
}

// span closes the jobs whose deadline lies within the span. It returns the cost of looking for them, and the result of
// the last statement.
func (e *deadlineExpirer) span(ctx context.Context,
	s span,
) (cost time.Duration, last sqlgen.ExpireDeadlinesRow, err error) {
	params := sqlgen.ExpireDeadlinesParams{
		FromDeadline: s.from, BeforeDeadline: s.before, Overlap: pgvalue.Interval(overlap),
		Horizon: pgvalue.Interval(lookAhead), Patience: pgvalue.Interval(deadlinePatience), MaxJobs: e.batch,
	}
	began := time.Now()
	for {
		params.Skipped = e.skipped.names(began)
		var took time.Duration
		last, took, err = e.close(ctx, params)
		if pgsession.MayBeRefusal(err) {
			if err = e.apart(ctx, params, err); err == nil {
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
		params.FromDeadline = last.Reached // the jobs before it are closed, or locked by others
	}
}

// close executes one statement, and moves on the keys of the jobs that it closed. It also returns how long the
// statement took.
func (e *deadlineExpirer) close(ctx context.Context,
	params sqlgen.ExpireDeadlinesParams,
) (row sqlgen.ExpireDeadlinesRow, took time.Duration, err error) {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	sent := time.Now()
	row, err = e.db.ExpireDeadlines(bound, params)
	took = time.Since(sent)
	cancel()
	if err != nil {
		return row, took, err
	}
	freed := map[keyName]bool{}
	for i, key := range row.Keys {
		freed[keyName{row.TenantIds[i], row.Queues[i], key}] = true
	}
	e.promoter.moveOn(ctx, freed)
	if row.Closed > 0 {
		e.seen = time.Now()
		e.metrics.late.Add(float64(row.Closed))
		e.log.LogAttrs(ctx, slog.LevelInfo, "jobs expired: their deadlines had come", slog.Int64("jobs", row.Closed))
	}
	return row, took, nil
}

// apart closes the jobs of a refused statement in ever smaller parts. It leaves jobs that are refused individually
// alone for a while. If it makes no progress, it returns the refusal.
func (e *deadlineExpirer) apart(ctx context.Context, params sqlgen.ExpireDeadlinesParams, cause error) error {
	bound, cancel := context.WithTimeout(ctx, statementTimeout)
	found, err := e.db.FindLateJobs(bound, sqlgen.FindLateJobsParams{
		FromDeadline: params.FromDeadline, BeforeDeadline: params.BeforeDeadline, Overlap: params.Overlap,
		Patience: params.Patience,
		Skipped:  params.Skipped, MaxJobs: params.MaxJobs,
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
		params.Among = []pgtype.UUID{} // nil would be all
		if len(part) > 0 {
			params.FromDeadline = part[0].Deadline
			params.BeforeDeadline = instant(part[len(part)-1].Deadline.Time.Add(time.Microsecond))
		}
		for _, job := range part {
			params.Among = append(params.Among, job.ID)
		}
		row, _, err := e.close(ctx, params)
		tally.done += int(row.Closed)
		return err
	}, func(job sqlgen.FindLateJobsRow, err error) {
		e.skipped.add(job.ID)
		tally.add(err, slog.String("job_id", job.ID.String()))
	})
	tally.log(ctx, e.log, "jobs not expired: the database refuses them")
	if err == nil && tally.refused+tally.done == 0 {
		return cause
	}
	return err
}

// lookFrom returns where a pass over the leases begins to look for a deadline: where the last one ended, or now and
// then the beginning, for jobs that were stored or committed after their deadline without an announcement.
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

// noteListening starts the polling if it is needed: the listener may have stopped receiving since the last pass over
// the deadlines.
func (d *deadlines) noteListening(listening bool) {
	if !listening {
		d.hurry(time.Now())
	}
}

// noteLook records what a pass over the leases saw from lookFrom on: the first deadline, due in the given number of
// seconds, or none within lookAhead of the database's now.
func (d *deadlines) noteLook(dbNow time.Time, seconds float64) {
	if math.IsInf(seconds, 1) {
		d.advance(dbNow)
		return
	}
	d.hurry(after(time.Now(), seconds))
}

// hurry makes the next pass over the deadlines begin by the given time.
func (d *deadlines) hurry(by time.Time) {
	select {
	case d.sooner <- by:
	default: // one is waiting; the next look reports again
	}
}

// advance moves passed forward. Two goroutines call it.
func (d *deadlines) advance(to time.Time) {
	for {
		passed := d.passed.Load()
		if passed != nil && !to.After(*passed) || d.passed.CompareAndSwap(passed, &to) {
			return
		}
	}
}

// after returns now plus the given seconds and a moment more, so that the database's clock has reached that time, too;
// for infinity, it returns a time far away.
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
