package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/posthaste-dev/posthaste/dispatcher"
	"github.com/posthaste-dev/posthaste/listener"
	"github.com/posthaste-dev/posthaste/outbox"
	"github.com/posthaste-dev/posthaste/reaper"
)

// Noop is the job of most workloads.
type Noop struct {
	N int `json:"n"`
}

// Kind is "bench.noop".
func (Noop) Kind() string { return "bench.noop" }

// worker is what one process does in production, with all defaults: listener,
// dispatcher and reaper.
type worker struct {
	done atomic.Int64
	stop func() error
}

// work starts a worker whose handler calls onStart.
func (r *rig) work(ctx context.Context, pool *pgxpool.Pool, onStart func(*outbox.Job[Noop])) (*worker, error) {
	w := &worker{}
	var mux dispatcher.Mux
	dispatcher.Handle(&mux, func(_ context.Context, job *outbox.Job[Noop]) error {
		if onStart != nil {
			onStart(job)
		}
		w.done.Add(1)
		return nil
	})
	wake := listener.NewSignal()
	l, err := listener.New(r.url, outbox.Channel, wake, listener.Config{Canary: pool})
	if err != nil {
		return nil, err
	}
	d, err := dispatcher.New(pool, &mux, dispatcher.Config{Wake: wake, Hearing: l.Hearing})
	if err != nil {
		return nil, err
	}
	reap, err := reaper.New(pool, reaper.Config{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	errs := make([]error, 3)
	for i, run := range []func(context.Context) error{l.Run, d.Run, reap.Run} {
		wg.Go(func() { errs[i] = run(ctx) })
	}
	w.stop = func() error {
		cancel()
		wg.Wait()
		for _, err := range errs {
			if err != nil {
				return fmt.Errorf("stop the worker: %w", err)
			}
		}
		return nil
	}
	return w, nil
}

// settled waits until n jobs were handled and none is open: the last one is then
// settled in the database.
func (r *rig) settled(ctx context.Context, w *worker, n int64) error {
	for {
		if w.done.Load() >= n {
			var open bool
			err := r.pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM outbox.jobs WHERE status IN ('pending', 'running', 'retrying') AND run_at <= now())`).Scan(&open)
			if err != nil {
				return err
			}
			if !open {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

// insert enqueues n jobs in batches of 10 000, a transaction each.
func (r *rig) insert(ctx context.Context, n int, o outbox.Options) error {
	requests := make([]outbox.Request, min(n, 10_000))
	for start := 0; start < n; start += len(requests) {
		requests = requests[:min(len(requests), n-start)]
		for i := range requests {
			requests[i] = outbox.Request{Args: Noop{start + i}, Options: o}
		}
		if _, err := outbox.EnqueueMany(ctx, r.pool, requests); err != nil {
			return err
		}
	}
	return nil
}

// settle lets the server finish what earlier phases left it to do.
func (r *rig) calm(ctx context.Context) error {
	_, err := r.pool.Exec(ctx, `VACUUM (ANALYZE) outbox.jobs`)
	if err == nil {
		_, err = r.pool.Exec(ctx, `CHECKPOINT`)
	}
	return err
}

func perSecond(n int64, since time.Time) float64 { return float64(n) / time.Since(since).Seconds() }
