package dispatcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// limiter enforces the limits that operators have set for a queue: whether it is paused, how many of its jobs may run
// at once in all processes together, and how many may start in an interval. While a queue is paused or limited, a plain
// claim returns nothing. The survey reports why, and from then on claims check the limits first.
//
// A limited claim is one transaction on one connection: it locks the queue's usage and measures it, claims as much as
// there is room for, and notes what it has started. No other process claims from the queue meanwhile, so both limits
// are exact: jobs that stop running only make room. If a process stops in the middle, the server ends its transaction
// after a second (queries/limit.sql has the statements and why they are in this order). No job is claimed ahead of its
// start: a job that waits in a buffer would use up a place, and start later than the rate allows for.
type limiter struct {
	*common
	queue    string
	capacity *capacity
	pool     *pgxpool.Pool // the control pool
}

// look returns what the limits leave of the jobs that are asked for, or nil if the queue has no limits. A claim has to
// follow, which ends the transaction.
func (l *limiter) look(ctx context.Context, asked int) (*usage, error) {
	if !l.capacity.limited.Load() {
		return nil, nil
	}
	// Set the flag before the look: a job that ends right after it must wake the queue.
	l.capacity.atLimit.Store(true)
	bound, cancel := bounded(context.WithoutCancel(ctx)) // as in claimer.lease
	defer cancel()
	conn, err := l.pool.Acquire(bound)
	if err != nil {
		return nil, fmt.Errorf("claim %d jobs of a limited queue: %w", asked, err)
	}
	used, err := l.measure(bound, conn)
	if err == nil {
		l.health.OK()
	}
	if used != nil {
		used.conn, used.asked, used.allowed = conn, asked, used.room(asked)
		l.capacity.atLimit.Store(used.allowed < asked)
		return used, nil
	}
	conn.Release()                  // after an error with an open transaction: the pool closes the connection
	if pgsession.IsLockedOut(err) { // a stuck claim holds the usage; the server will end it
		return &usage{asked: asked}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the limits of queue %s: %w", l.queue, err)
	}
	l.capacity.limited.Store(false) // the next claims will not look
	l.capacity.atLimit.Store(false)
	return nil, nil
}

// rest returns how long the queue rests after a claim of n jobs, unless something wakes it. It returns 0 if no limit
// kept the claim from taking more.
func (l *limiter) rest(u *usage, n int) time.Duration {
	switch {
	case n < u.allowed || u.allowed == u.asked:
		return 0
	case u.conn == nil:
		return nextLook(l.poll())
	}
	reason := u.reason()
	l.metrics.atLimit.WithLabelValues(l.queue, reason).Inc()
	next := nextLook(l.poll())
	if reason == "rate" {
		next = min(next, max(u.log.next(u.Now.Time), time.Millisecond))
	}
	return next
}

// measure begins the transaction, locks the queue's usage and reads it. It returns nil, and leaves no transaction, if
// the queue is neither limited nor paused. MeasureQueue is a statement of its own because it must begin after HoldQueue
// has waited.
func (l *limiter) measure(ctx context.Context, conn *pgxpool.Conn) (*usage, error) {
	var found []sqlgen.MeasureQueueRow
	batch := new(pgx.Batch)
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(sqlgen.BoundClaim)
	batch.Queue(sqlgen.MakeUsage, l.queue)
	batch.Queue(sqlgen.HoldQueue, l.queue)
	batch.Queue(sqlgen.MeasureQueue, l.queue).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[sqlgen.MeasureQueueRow])
		return err
	})
	if err := conn.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	if len(found) == 1 && (found[0].Paused || found[0].MaxRunning != nil || found[0].Rate != nil) {
		return newUsage(found[0]), nil
	}
	_, err := conn.Exec(ctx, "ROLLBACK")
	return nil, err
}

// commit ends the transaction. If jobs were started, it stores the new usage first.
func (l *limiter) commit(ctx context.Context, u *usage, started bool) error {
	bound, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	batch := new(pgx.Batch)
	if started {
		batch.Queue(sqlgen.NoteStarts, u.Running, u.CountedWhole, u.Now, u.log.times, u.log.counts, l.queue)
	}
	batch.Queue("COMMIT")
	return u.conn.SendBatch(bound, batch).Close()
}

// nextLook returns how long a queue sleeps that is paused or at its limit; poll is how long it would sleep otherwise.
// Each process looks at the limits every noticeWithin, and up to twice as often, so that it also uses the room that
// other processes have made, alive or dead. Nobody is notified of room: most of it is used up again at once by the
// process that made it, and a NOTIFY for every job that ends would cost all commits of the database more than these
// looks do.
func nextLook(poll time.Duration) time.Duration {
	return min(poll, noticeWithin/2+rand.N(noticeWithin/2))
}

// usage holds the limits of a queue, how much of them is used, and what they leave for a claim.
type usage struct {
	sqlgen.MeasureQueueRow
	log     startLog
	conn    *pgxpool.Conn // in a transaction that holds the queue's usage; nil if another process holds it
	asked   int           // jobs
	allowed int           // how many of them may start
}

func newUsage(m sqlgen.MeasureQueueRow) *usage {
	u := &usage{MeasureQueueRow: m}
	if m.Rate != nil {
		u.log = newStartLog(time.Duration(m.RateSeconds*float64(time.Second)), m.Now.Time, m.StartTimes, m.StartCounts)
	}
	return u
}

// room returns how many of the jobs that are asked for may start.
func (u *usage) room(asked int) int {
	if u.Paused {
		return 0
	}
	if u.MaxRunning != nil {
		asked = min(asked, int(*u.MaxRunning)-len(u.Running))
	}
	if u.Rate != nil {
		asked = min(asked, int(*u.Rate)-u.log.started())
	}
	return max(asked, 0)
}

// add counts claimed jobs as started.
func (u *usage) add(claimed []*attempt) {
	for _, a := range claimed {
		if u.MaxRunning != nil {
			u.Running = append(u.Running, pgvalue.UUID(a.job.ID))
		}
		if u.Rate != nil {
			u.log.add(a.job.StartedAt)
		}
	}
}

// reason names the limit that stopped a claim.
func (u *usage) reason() string {
	switch {
	case u.Paused:
		return "paused"
	case u.Rate != nil && u.log.started() >= int(*u.Rate):
		return "rate"
	}
	return "max_running"
}

// rateParts is the number of parts of the interval by which starts are counted.
const rateParts = 100

// startLog records the starts of the last interval: for each hundredth of it, the latest start and the number of
// starts. So its length is bounded, and it forgets a start up to a hundredth of the interval too late and never too
// early: no span as long as the interval has more starts than the rate. The times are the database's.
type startLog struct {
	interval time.Duration
	times    []pgtype.Timestamptz
	counts   []int32
}

// newStartLog makes a log from its stored form. It drops times far in the future: they were stored before the
// database's clock was set back, or under a longer interval.
func newStartLog(interval time.Duration, now time.Time, times []pgtype.Timestamptz, counts []int32) startLog {
	l := startLog{interval: interval}
	for i, at := range times {
		if age := now.Sub(at.Time); i < len(counts) && age < interval && age >= -interval {
			l.times, l.counts = append(l.times, at), append(l.counts, counts[i])
		}
	}
	return l
}

func (l *startLog) started() (n int) {
	for _, count := range l.counts {
		n += int(count)
	}
	return n
}

func (l *startLog) add(at time.Time) {
	part, last := l.interval/rateParts, len(l.times)-1
	if last >= 0 && l.times[last].Time.Truncate(part).Equal(at.Truncate(part)) {
		if at.After(l.times[last].Time) {
			l.times[last].Time = at
		}
		l.counts[last]++
		return
	}
	l.times = append(l.times, pgtype.Timestamptz{Time: at, Valid: true})
	l.counts = append(l.counts, 1)
}

// next returns how long it takes until a start is forgotten.
func (l *startLog) next(now time.Time) time.Duration {
	next := l.interval
	for _, at := range l.times {
		next = min(next, at.Time.Add(l.interval).Sub(now))
	}
	return next
}
