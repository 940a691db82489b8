// Package limit enforces the limits that operators have set for a queue: whether it is paused, how many of its jobs may
// run at once in all processes together, and how many may start in an interval.
//
// While a queue is paused or limited, a plain claim returns nothing. The survey reports why, and from then on claims
// check the limits first. A limited claim is one transaction on one connection: it locks the queue's usage and measures
// it, claims as much as there is room for, and notes what it has started. No other process claims from the queue
// meanwhile, so both limits are exact: jobs that stop running only make room. If a process stops in the middle, the
// server ends its transaction after a second (queries/limit.sql has the statements and why they are in this order). No
// job is claimed ahead of its start: a job that waits in a buffer would use up a place, and start later than the rate
// allows for.
package limit

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/pgvalue"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
	"github.com/posthaste-dev/posthaste/outbox"
)

// State holds what is known of a queue's limits. Any goroutine may read it; only the queue's claim loop changes it.
type State struct{ atomic.Int32 }

const (
	none    int32 = iota // it has none, and is not paused
	room                 // it has some, or is paused; a job that ends lets no other start
	reached              // as many jobs run as may: one that ends makes room
)

// Found notes that the queue is limited or paused, and reports whether that was unknown.
func (s *State) Found() bool { return s.CompareAndSwap(none, room) }

// Known reports whether the queue is known to be limited or paused.
func (s *State) Known() bool { return s.Load() != none }

// Reached reports whether the queue may have room again when one of its jobs has ended.
func (s *State) Reached() bool { return s.Load() == reached }

// Limiter checks the limits of a queue before its claims. Only the queue's claim loop calls its methods.
type Limiter struct {
	Queue   string
	Pool    *pgxpool.Pool // whose statements may take up to Timeout
	State   *State
	Poll    func() time.Duration // how long the queue sleeps when nothing limits it
	Timeout time.Duration        // of each statement
	Notice  time.Duration        // the longest time between two looks while a limit keeps jobs from starting
	OK      func()               // is called when the database has answered
	Reached func(limit string)   // is called when a limit kept a claim from taking more
}

// Look returns what the limits leave of the jobs that are asked for, or nil if the queue has no limits. A claim has to
// follow, which ends the transaction. ctx outlasts Run's, because a claim that is cut off may have committed.
func (l *Limiter) Look(ctx context.Context, asked int) (*Usage, error) {
	if !l.State.Known() {
		return nil, nil
	}
	// Before the look: a job that ends right after it must wake the queue. Rest knows whether that was needed.
	l.State.Store(reached)
	bound, cancel := l.bounded(ctx)
	defer cancel()
	conn, err := l.Pool.Acquire(bound)
	if err != nil {
		return nil, fmt.Errorf("claim %d jobs of a limited queue: %w", asked, err)
	}
	used, err := l.measure(bound, conn)
	if err == nil {
		l.OK()
	}
	if used != nil {
		used.Conn, used.asked, used.Allowed = conn, asked, used.room(asked)
		return used, nil
	}
	conn.Release()                  // after an error with an open transaction: the pool closes the connection
	if pgsession.IsLockedOut(err) { // a stuck claim holds the usage; the server will end it
		return &Usage{asked: asked}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look at the limits of queue %s: %w", l.Queue, err)
	}
	l.State.Store(none) // the next claims will not look
	return nil, nil
}

// Rest returns how long the queue rests after a claim of n jobs, unless something wakes it. It returns 0 if no limit
// kept the claim from taking more.
func (l *Limiter) Rest(u *Usage, n int) time.Duration {
	switch {
	case n < u.Allowed || u.Allowed == u.asked:
		l.State.Store(room)
		return 0
	case u.Conn == nil: // which limit it is at is not known
		return l.nextLook()
	}
	reason := u.reason()
	l.Reached(reason)
	next := l.nextLook()
	if reason != "max_running" {
		l.State.Store(room)
	}
	if reason == "rate" {
		next = min(next, max(u.log.next(u.Now.Time), time.Millisecond))
	}
	return next
}

// measure begins the transaction, locks the queue's usage and reads it. It returns nil, and leaves no transaction, if
// the queue is neither limited nor paused. MeasureQueue is a statement of its own because it must begin after HoldQueue
// has waited.
func (l *Limiter) measure(ctx context.Context, conn *pgxpool.Conn) (*Usage, error) {
	var found []sqlgen.MeasureQueueRow
	batch := new(pgx.Batch)
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(sqlgen.BoundClaim)
	batch.Queue(sqlgen.MakeUsage, l.Queue)
	batch.Queue(sqlgen.HoldQueue, l.Queue)
	batch.Queue(sqlgen.MeasureQueue, l.Queue).Query(func(rows pgx.Rows) (err error) {
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

// Commit ends the transaction. If jobs were started, it stores the new usage first.
func (l *Limiter) Commit(ctx context.Context, u *Usage, started bool) error {
	bound, cancel := l.bounded(ctx)
	defer cancel()
	batch := new(pgx.Batch)
	if started {
		batch.Queue(sqlgen.NoteStarts, u.Running, u.CountedWhole, u.Now, u.log.times, u.log.counts, l.Queue)
	}
	batch.Queue("COMMIT")
	return u.Conn.SendBatch(bound, batch).Close()
}

// bounded returns the context of one statement.
func (l *Limiter) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, l.Timeout)
}

// nextLook returns how long a queue sleeps that is paused or at its limit. Each process looks at the limits every
// Notice, and up to twice as often, so that it also uses the room that other processes have made, alive or dead. Nobody
// is notified of room: most of it is used up again at once by the process that made it, and a NOTIFY for every job that
// ends would cost all commits of the database more than these looks do.
func (l *Limiter) nextLook() time.Duration { return min(l.Poll(), l.Notice/2+rand.N(l.Notice/2)) }

// Usage holds the limits of a queue, how much of them is used, and what they leave for a claim.
type Usage struct {
	sqlgen.MeasureQueueRow
	log     startLog
	Conn    *pgxpool.Conn // in a transaction that holds the queue's usage; nil if another process holds it
	asked   int           // jobs
	Allowed int           // how many of them may start
}

func newUsage(m sqlgen.MeasureQueueRow) *Usage {
	u := &Usage{MeasureQueueRow: m}
	if m.Rate != nil {
		u.log = newStartLog(pgvalue.Seconds(m.RateSeconds), m.Now.Time, m.StartTimes, m.StartCounts)
	}
	return u
}

// room returns how many of the jobs that are asked for may start.
func (u *Usage) room(asked int) int {
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

// Add counts a claimed job as started.
func (u *Usage) Add(id outbox.ID, startedAt time.Time) {
	if u.MaxRunning != nil {
		u.Running = append(u.Running, pgvalue.UUID(id))
	}
	if u.Rate != nil {
		u.log.add(startedAt)
	}
}

// reason names the limit that stopped a claim.
func (u *Usage) reason() string {
	switch {
	case u.Paused:
		return "paused"
	case u.Rate != nil && u.log.started() >= int(*u.Rate):
		return "rate"
	}
	return "max_running"
}
