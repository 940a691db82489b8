package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/internal/verify/probe"
	"github.com/posthaste-dev/posthaste/outbox"
)

// startWithAJob starts a worker without a listener while a job is waiting:
//
//	clerk    commit
//	worker             start   look                    poll, 2 s later
//
// Before the poll, only the worker's first look can find the job. The fastest of three tries counts, so that a machine
// that stalls for a second does not fail the row.
func (r *Run) startWithAJob(ctx context.Context, c *clerk) error {
	const tries, atOnce = 3, 1.0 // seconds; half the poll
	var fastest float64
	for i := range tries {
		job, _, err := c.place(ctx)
		if err != nil {
			return err
		}
		w, err := r.Worker(fmt.Sprintf("s%d", i), "OUTBOX_LISTEN=off", "OUTBOX_POLL_INTERVAL=5m")
		if err != nil {
			return err
		}
		took, err := r.lookedAfter(ctx, job)
		if err := errors.Join(err, r.stop(ctx, w)); err != nil {
			return err
		}
		if fastest = took; fastest <= atOnce {
			break
		}
	}
	r.Expect("seconds from a worker's start to its claim of a waiting job, fastest", fastest, "<=", atOnce)
	return nil
}

// lookedAfter returns how many seconds passed between the only worker's registration and its claim of the job, by the
// database's clock. It waits until the job is done.
func (r *Run) lookedAfter(ctx context.Context, job outbox.ID) (seconds float64, err error) {
	err = r.Await(ctx, patience, "the job that was waiting to be done", func(ctx context.Context) (bool, error) {
		var took *float64
		err := r.DB.QueryRow(ctx, `SELECT extract(epoch FROM min(moves.at) - min(workers.started_at))::float8
			FROM verify.moves JOIN outbox.workers ON workers.worker = moves.owner
			WHERE moves.job = $1 AND moves.became = 'running' AND EXISTS (SELECT FROM outbox.history WHERE id = $1)`, job.String()).Scan(&took)
		if took != nil {
			seconds = max(*took, 0)
		}
		return took != nil, err
	})
	return seconds, err
}

// slowing makes COMMIT take a second, in which the job cannot be seen yet.
const slowing = `
	CREATE FUNCTION verify.linger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(1); RETURN NULL; END $$;
	CREATE CONSTRAINT TRIGGER verify_linger AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION verify.linger()`

// commitSlowly places an order through a Producer, whose COMMIT takes a second, while a worker listens that polls every
// five minutes:
//
//	producer   COMMIT ................ done   NOTIFY
//	worker                                             look: there it is
//
// If NOTIFY is sent too early, the worker looks in vain, and nothing wakes it again.
func (r *Run) commitSlowly(ctx context.Context, c *clerk) error {
	const promptly = 5 * time.Second // far less than the poll, and than any other wake-up
	producer := outbox.NewProducer(r.DB, outbox.NotifyCoalesced)
	if _, err := r.DB.Exec(ctx, slowing); err != nil {
		return err
	}
	job, committed, err := c.placeWith(ctx, producer, probe.Task{Do: "effect"}, outbox.Options{})
	if err != nil {
		return err
	}
	if _, err := r.DB.Exec(ctx, `DROP TRIGGER verify_linger ON orders`); err != nil {
		return err
	}
	started, err := r.startedWithin(ctx, job, promptly)
	r.Expect("jobs started promptly after a slow COMMIT", count(started), "=", 1,
		fmt.Sprintf("%s, committed at %s", job, committed))
	return errors.Join(err, producer.Flush(ctx))
}

// startedWithin reports whether a job starts within a time from now.
func (r *Run) startedWithin(ctx context.Context, job outbox.ID, limit time.Duration) (started bool, err error) {
	for deadline := time.Now().Add(limit); !started && err == nil && time.Now().Before(deadline); {
		err = r.ask(ctx, func(ctx context.Context) error {
			return r.DB.QueryRow(ctx, `SELECT EXISTS (SELECT FROM verify.moves WHERE job = $1 AND became = 'running')`,
				job.String()).Scan(&started)
		})
		if err == nil && !started {
			err = backoff.Sleep(ctx, 20*time.Millisecond)
		}
	}
	return started, err
}
