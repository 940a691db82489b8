package verify

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/verify/checker"
)

// allDead is the fault that [deaths] injects.
const allDead = "kill -9 of every worker before it could promote"

// deaths kills whole crews while their promotions are under way.
type deaths struct {
	run  *Run
	took []time.Duration // from when there were workers again until the next jobs were promoted
	away []checker.Span  // when the row had locked the keys, or there was no worker
}

// unpromoted selects the next job of each key whose jobs only a promotion can unblock.
const unpromoted = `SELECT DISTINCT ON (key) id::text FROM outbox.jobs
	WHERE status = 'blocked' AND key NOT IN (SELECT key FROM outbox.jobs WHERE status IN ('running', 'pending', 'retrying'))
	ORDER BY key, priority DESC, run_at, id`

// die kills all workers when they have settled jobs and not yet promoted the next ones, so that only the sweep can. A
// lock on the keys separates the two: a settlement does not wait for it, and a promotion does:
//
//	harness    lock the keys                               roll back, hire
//	workers                   settle, wait for a key, die
//	others                                                                  sweep, promote
//
// If too few jobs are blocked, it does nothing, and the next beat tries again.
func (d *deaths) die(ctx context.Context, c *crew) error {
	if d.run.Await(ctx, time.Second, "blocked jobs", func(ctx context.Context) (bool, error) {
		n, err := d.run.Number(ctx, `SELECT count(DISTINCT key) FROM outbox.jobs WHERE status = 'blocked'`)
		return n >= 5, err
	}) != nil {
		return ctx.Err()
	}
	away := checker.Span{From: time.Now()}
	next, err := d.strike(ctx, c)
	away.Until = time.Now()
	d.away = append(d.away, away)
	if err != nil || len(next) == 0 {
		return err
	}
	began := time.Now()
	if err := d.run.Await(ctx, patience, "the sweep to promote the next jobs of the dead workers' keys",
		func(ctx context.Context) (bool, error) {
			n, err := d.run.Number(
				ctx, `SELECT count(*) FROM outbox.jobs WHERE id = ANY ($1::uuid[]) AND status = 'blocked'`, next)
			return n == 0, err
		}); err != nil {
		return err
	}
	d.took = append(d.took, time.Since(began))
	// All workers are alive until the next fault, so that their metrics are complete.
	return d.run.Await(ctx, patience, "the sweep to count the keys that it promoted",
		func(ctx context.Context) (bool, error) {
			n, err := metric(ctx, "outbox_reaper_keys_moved_on_total", c.workers...)
			return n > 0, err
		})
}

// strike locks the keys, kills all workers once slots are free, and hires new ones. It returns the jobs that wait for a
// promotion by then.
func (d *deaths) strike(ctx context.Context, c *crew) (next []string, err error) {
	r := d.run
	holder, err := r.DB.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer func() {
		if failed := holder.Rollback(ctx); !errors.Is(failed, pgx.ErrTxClosed) {
			err = errors.Join(err, failed)
		}
	}()
	if _, err := holder.Exec(ctx, `SELECT FROM outbox.keys ORDER BY tenant_id, queue, key FOR UPDATE`); err != nil {
		return nil, err
	}
	if r.Await(ctx, time.Second, "slots to be free", func(ctx context.Context) (bool, error) {
		next, err := r.Texts(ctx, unpromoted)
		return len(next) >= 2, err
	}) != nil {
		return nil, ctx.Err()
	}
	defer r.Faults.Begin(allDead, "")()
	for _, p := range c.workers {
		if err := p.Kill9(); err != nil {
			return nil, err
		}
	}
	// A statement that waits for a lock does not notice that its client is gone.
	if err := r.Await(ctx, patience, "the sessions of the killed workers to end",
		func(ctx context.Context) (bool, error) {
			n, err := r.Number(ctx,
				`SELECT count(*) FILTER (WHERE pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'verify-worker'`)
			return n == 0, err
		}); err != nil {
		return nil, err
	}
	if next, err = r.Texts(ctx, unpromoted); err != nil {
		return nil, err
	}
	if err := holder.Rollback(ctx); err != nil {
		return nil, err
	}
	for i := range c.workers {
		if c.workers[i], err = c.hire(); err != nil {
			return nil, err
		}
	}
	return next, r.awaitStatus(ctx, "ready", c.workers...)
}
