package dispatcher

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/internal/sqlgen"
)

// limiter looks at what operators have set for a queue: that it is paused, how many of its jobs may run at once in all
// processes together, and how many may start in an interval. A plain claim is refused by a
// queue of which any of it is true; the survey says why, and from then on claims
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

// nextLook is how long a queue at its limit sleeps, which would otherwise be looked at after poll.
func nextLook(poll time.Duration) time.Duration { return min(poll, limitPoll/2+rand.N(limitPoll/2)) }
