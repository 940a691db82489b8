package dispatcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/pgsession"
	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// limiter looks at what operators have set for a queue: that it is paused, how many of its jobs may run at once in all
// processes together, and how many may start in an interval. A plain claim is refused by a
// queue of which any of it is true; the survey tells why, and from then on claims
// look first.
//
// A limited claim is one transaction on one connection:
//
//	BEGIN; hold the queue's usage; measure it    one round trip
//	claim as much as there is room for           as an unlimited queue does
//	note what was started; COMMIT                one round trip
//
// Nobody else claims of the queue meanwhile, so both limits are exact: what
// leaves running only makes room. A process that stops in the middle is cut off
// by the server after a second (see BoundClaim). Nothing is fetched ahead: a job
// that waits in a buffer would use up a place, and start later than its rate says.
type limiter struct {
	queue  string
	pool   *pgxpool.Pool
	claims claims // sent over the connection that holds the queue
}

// A queue that is paused or at its limit is looked at this often, and up to
// twice as often, by each process: an operator's change whose notification was
// lost takes effect within a second, and so does room that others have made, be
// they alive or dead. Nobody is told of it: most room is taken up again at
// once by the process that made it, and a NOTIFY for every job that ends would
// cost all commits of the database more than the looks do.
const limitPoll = 800 * time.Millisecond

// claimLimited is claim for a queue that is limited or paused.
func (c *claimer) claimLimited(ctx context.Context, plan func(places) claimPlan) (int, error) {
	// Before the look, so that no room is overlooked:
	//
	//	claim    look: full                     sleep
	//	settle               a job ends, full?
	c.capacity.atLimit.Store(true)
	places := c.places()
	bound, cancel := bounded(context.WithoutCancel(ctx)) // as in claimPlain
	defer cancel()
	conn, err := c.limiter.pool.Acquire(bound)
	if err != nil {
		return 0, fmt.Errorf("claim %d jobs of a limited queue: %w", places.room, err)
	}
	defer conn.Release() // with an open transaction: the pool closes the connection
	used, err := c.limiter.measure(bound, conn)
	switch {
	case pgsession.IsLockedOut(err): // somebody is stuck in the middle of a claim; the server will end that
		c.stop(c.nextLook())
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("look at the limits of queue %s: %w", c.queue, err)
	}
	c.health.OK()
	if used == nil { // nothing is claimed; nor will the next claims look
		c.capacity.limited.Store(false)
		c.capacity.atLimit.Store(false)
		return 0, nil
	}
	allowed := used.room(places.room)
	c.capacity.atLimit.Store(allowed < places.room)
	n, err := c.claimWithin(ctx, conn, allowed, used, plan)
	if err == nil && n == allowed && allowed < places.room {
		c.stop(min(used.rest(), c.nextLook()))
		c.metrics.atLimit.WithLabelValues(used.reason()).Inc()
	}
	return n, err
}

// claimWithin claims as many jobs as the limits allow, and ends the transaction.
// Nothing of what it got is started before it has been committed.
func (c *claimer) claimWithin(ctx context.Context, conn *pgxpool.Conn, allowed int, used *usage, plan func(places) claimPlan) (n int, err error) {
	var batches []*claimBatch
	if allowed > 0 {
		places := c.places()
		places.room = allowed
		n, err = c.claimFrom(ctx, c.limiter.over(conn), plan(places), func(b *claimBatch) error {
			batches = append(batches, b)
			return b.err
		})
	}
	if err == nil {
		for _, b := range batches {
			used.add(b.claimed)
		}
		err = c.limiter.commit(ctx, conn, used, n > 0)
	}
	if err != nil {
		c.uncertain = time.Now().Add(uncertainFor)
		return 0, fmt.Errorf("claim %d jobs of a limited queue: %w", allowed, err)
	}
	for _, b := range batches {
		if err := c.take(ctx, b); err != nil {
			return n, err
		}
	}
	return n, nil
}

// over is where the claims of a transaction are sent to.
func (l *limiter) over(conn *pgxpool.Conn) claimSource {
	within := l.claims
	within.db, within.limits = conn, true
	return within
}

// measure begins the transaction, holds the queue's usage and looks at it. It
// returns nil, and no transaction, if the queue is neither limited nor paused.
func (l *limiter) measure(ctx context.Context, conn *pgxpool.Conn) (*usage, error) {
	for range 2 {
		held, found, err := l.hold(ctx, conn)
		if err != nil {
			return nil, err
		}
		if held && len(found) == 1 && (found[0].Paused || found[0].MaxRunning != nil || found[0].Rate != nil) {
			return newUsage(found[0]), nil
		}
		if _, err := conn.Exec(ctx, "ROLLBACK"); err != nil || held {
			return nil, err
		}
		if err := sqlgen.New(conn).MakeUsage(ctx, l.queue); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the row of queue %s in outbox.queue_usage is taken away again and again", l.queue)
}

func (l *limiter) hold(ctx context.Context, conn *pgxpool.Conn) (held bool, found []sqlgen.MeasureQueueRow, err error) {
	batch := new(pgx.Batch)
	batch.Queue("BEGIN ISOLATION LEVEL READ COMMITTED")
	batch.Queue(sqlgen.BoundClaim)
	batch.Queue(sqlgen.HoldQueue, l.queue).Query(func(rows pgx.Rows) error {
		held = rows.Next()
		rows.Close()
		return rows.Err()
	})
	batch.Queue(sqlgen.MeasureQueue, l.queue).Query(func(rows pgx.Rows) (err error) {
		found, err = pgx.CollectRows(rows, pgx.RowToStructByPos[sqlgen.MeasureQueueRow])
		return err
	})
	err = conn.SendBatch(ctx, batch).Close()
	return held, found, err
}

// commit ends the transaction, with what was started stored if anything was.
func (l *limiter) commit(ctx context.Context, conn *pgxpool.Conn, used *usage, started bool) error {
	bound, cancel := bounded(context.WithoutCancel(ctx))
	defer cancel()
	batch := new(pgx.Batch)
	if started {
		batch.Queue(sqlgen.NoteStarts, used.Running, used.CountedWhole, used.Now, used.log.times, used.log.counts, l.queue)
	}
	batch.Queue("COMMIT")
	return conn.SendBatch(bound, batch).Close()
}

func (c *claimer) stop(rest time.Duration) { c.stopped, c.rest = true, rest }

func (c *claimer) nextLook() time.Duration {
	return min(c.intervals.now(), limitPoll/2+rand.N(limitPoll/2))
}

// restAtLimit is what a drain does that was stopped by a limit: it returns how long
// to sleep. A queue that is always at its limit must still learn of priorities
// that are new to it.
func (c *claimer) restAtLimit(ctx context.Context) (time.Duration, error) {
	if c.sched.surveyDue(time.Now()) {
		if _, err := c.survey(ctx); err != nil {
			return 0, err
		}
	}
	return c.rest, nil
}
