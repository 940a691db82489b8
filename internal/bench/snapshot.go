package bench

import (
	"cmp"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/posthaste-dev/posthaste/internal/backoff"
	"github.com/posthaste-dev/posthaste/outbox"
)

// The times of tenantsHeld, from the start of the worker on.
const (
	loneFrom   = 12 * time.Second  // by then, the busy tenant has left a hundred thousand dead entries
	loneUntil  = 90 * time.Second  // no new job is committed later
	quietFrom  = 66 * time.Second  // a minute after the quiet tenants' first jobs were done
	quietUntil = 150 * time.Second // as loneUntil
	loneAfter  = 10 * time.Second  // how long to go on after the busy tenant is done
	loneEnd    = 170 * time.Second // a job that has not started by then counts as started then
	loneEvery  = 100 * time.Millisecond
)

// tenantsHeld measures how long the single job of a tenant waits, from its COMMIT until its handler starts, while a
// transaction holds a snapshot: beside a busy tenant, whose jobs take 5 ms each, and for a while after the last of
// these is done. The single jobs come one at a time. They belong to tenants that the worker has never seen, without and
// with a key, and to tenants that had a job a minute ago. A producer that is not attached to the worker commits them,
// so that the worker learns of them from the listener. With --keys the busy tenant's jobs share that many keys.
func tenantsHeld(ctx context.Context, r *rig) ([]Figure, error) {
	backlog := cmp.Or(r.Jobs, 300_000)
	busy := r.ours(r.pool, r.Notify)
	busy.options = &outbox.Options{Tenant: outbox.NewID()}
	if r.Keys > 0 {
		busy.key = func(job int) string { return fmt.Sprint("key-", job%r.Keys) }
	}
	forgotten, err := r.forget(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = forgotten.Rollback(context.WithoutCancel(ctx)) }()
	if err := inBatches(backlog, func(_, n int) error { return busy.repeat(ctx, -1, n) }); err != nil {
		return nil, err
	}
	quiet, err := r.quietTenants(ctx, 60)
	if err != nil {
		return nil, err
	}
	if err := r.calm(ctx); err != nil {
		return nil, err
	}

	lone := &loneJobs{producer: outbox.NewProducer(r.pool, r.Notify), starts: make(chan loneStart, 1000)}
	lone.began = time.Now()
	var done atomic.Int64
	drained := make(chan time.Time, 1)
	w, err := r.work(ctx, r.ours(r.pool, r.Notify), func(job int) {
		if job >= 0 {
			lone.starts <- loneStart{job, time.Now()}
			return
		}
		time.Sleep(5 * time.Millisecond)
		if done.Add(1) == int64(backlog+len(quiet)) {
			drained <- time.Now()
		}
	})
	if err != nil {
		return nil, err
	}
	figures, took, err := lone.besideAndAfter(ctx, drained)
	if err != nil {
		return nil, err
	}
	if err := lone.sleepUntil(ctx, quietFrom); err != nil {
		return nil, err
	}
	if err := inBatches(backlog/6, func(_, n int) error { return busy.repeat(ctx, -1, n) }); err != nil {
		return nil, err
	}
	var known waits
	for i := 0; i < len(quiet) && time.Since(lone.began) < quietUntil; i++ {
		if err := known.add(lone.wait(ctx, outbox.Options{Tenant: quiet[i]})); err != nil {
			return nil, err
		}
	}
	return append(append(figures, known.figures("quiet")...),
		Figure{"busy_jobs_per_s", float64(backlog) / took.Seconds()}), w.stop()
}

// quietTenants enqueues a job for each of n new tenants, which then have none for a while.
func (r *rig) quietTenants(ctx context.Context, n int) ([]outbox.ID, error) {
	tenants, jobs := make([]outbox.ID, n), make([]outbox.Request, n)
	for i := range tenants {
		tenants[i] = outbox.NewID()
		jobs[i] = outbox.Request{Args: Noop{-1}, Options: outbox.Options{Tenant: tenants[i]}}
	}
	_, err := outbox.EnqueueMany(ctx, r.pool, jobs)
	return tenants, err
}

// besideAndAfter commits single jobs of new tenants until the busy tenant has been done for a while, and returns how
// long the busy tenant's jobs took.
func (l *loneJobs) besideAndAfter(ctx context.Context, drained <-chan time.Time) ([]Figure, time.Duration, error) {
	var plain, keyed waits
	if err := l.sleepUntil(ctx, loneFrom); err != nil {
		return nil, 0, err
	}
	until, took := l.began.Add(loneUntil), loneUntil
	for time.Now().Before(until) {
		if err := plain.add(l.wait(ctx, outbox.Options{Tenant: outbox.NewID()})); err != nil {
			return nil, 0, err
		}
		if err := keyed.add(l.wait(
			ctx, outbox.Options{Tenant: outbox.NewID(), Key: outbox.KeyRules{Name: "lone"}})); err != nil {
			return nil, 0, err
		}
		select {
		case at := <-drained:
			took, until = at.Sub(l.began), time.Now().Add(loneAfter)
		default:
		}
	}
	return append(plain.figures("lone"), keyed.figures("keyed")...), took, nil
}

// forget begins a transaction that holds a snapshot.
func (r *rig) forget(ctx context.Context) (pgx.Tx, error) {
	tx, err := r.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return nil, err
	}
	if _, err := tx.Exec(ctx, `SELECT count(*) FROM pg_class`); err != nil {
		return nil, err
	}
	return tx, nil
}

type waits []time.Duration

func (w waits) figures(of string) []Figure {
	p := percentiles(w)
	return []Figure{
		{of + "_p50_ms", p[0].Value},
		{of + "_p99_ms", p[2].Value},
		{of + "_max_ms", p[3].Value},
		{of + "_jobs", float64(len(w))},
	}
}

func (w *waits) add(wait time.Duration, err error) error {
	*w = append(*w, wait)
	return err
}

// loneJobs commits jobs one at a time and waits for each to start.
type loneJobs struct {
	producer *outbox.Producer
	began    time.Time
	n        int
	starts   chan loneStart
}

type loneStart struct {
	job int
	at  time.Time
}

// wait commits a job, after a pause, and returns the time from the COMMIT until the job has started.
func (l *loneJobs) wait(ctx context.Context, opts outbox.Options) (time.Duration, error) {
	if err := backoff.Sleep(ctx, loneEvery); err != nil {
		return 0, err
	}
	l.n++
	var committed time.Time
	err := l.producer.InTx(ctx, func(tx pgx.Tx) error {
		_, err := outbox.Enqueue(ctx, tx, Noop{l.n}, opts)
		committed = time.Now()
		return err
	})
	if err != nil {
		return 0, err
	}
	end := time.NewTimer(time.Until(l.began.Add(loneEnd)))
	defer end.Stop()
	for {
		select {
		case start := <-l.starts:
			if start.job == l.n { // not a job for which wait gave up
				return start.at.Sub(committed), nil
			}
		case <-end.C:
			return time.Since(committed), nil
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (l *loneJobs) sleepUntil(ctx context.Context, since time.Duration) error {
	return backoff.Sleep(ctx, time.Until(l.began.Add(since)))
}
